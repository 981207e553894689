// Fills the parameters of a module whose chunks exist, from FirstValues.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/parameter.h"
#include "colossal/train/first_values.h"
#include "colossal/train/module_tensors.h"
#include "colossal/train/optimization.h"

namespace colossal::train {

/// Returns true if some parameter of `tensors` is on meta, but `device` is not.
bool has_empty(const ModuleTensors& tensors, at::Device device);

/// Checks that `first` can fill the parameters of `tensors` that are on meta, and that its weights, if it has any, are
/// those of the module. Reads no values.
/// Errors ("model"): neither or both of weights and init; no function `replace`; `has_first_pass`. A parameter without
/// a value that FirstValues::missing does not name, a value of another shape, and a value without a parameter (a table
/// of all); a name in `missing` that is no parameter's; submodules with unknown
/// parameters, or with some that are on meta and some that are not; a buffer on meta.
void check_first_values(const ModuleTensors& tensors, const FirstValues& first, at::Device device, bool has_first_pass);

/// Returns `tensors` with the module's new handles in the place of those on meta (FirstValues::replace).
/// Errors ("model"): a handle that differs from what was asked for.
ModuleTensors replaced(const ModuleTensors& tensors, const FirstValues& first, at::Device device);

/// Fills the parameters and buffers. `tensors`: as handed to initialize(). Collective.
/// Communication: of `init`: a broadcast of every parameter, and an agreement for each group of submodules. Of both: as
///                Optimization::weights_loaded().
/// Memory:        the parameters of one group of submodules; of `weights` one tensor of the source.
/// Errors, on all ranks: of the source, `init` and the tiers. ("model"): `init` left NaN in a parameter.
void fill(const ModuleTensors& tensors, const FirstValues& first, const ModuleTensors::Named& buffers,
          Optimization& optimization, comm::Mesh& mesh);

}  // namespace colossal::train
