// A part that a model has within it and its folder has not, such as a ControlNet or an IP-adapter: its parameters train
// alone, are saved alone, and are read from a place of their own.
//
//   const AddedPart part{.kind = "controlnet", .is_of = models::is_of_control, .origin = models::control_origin};
//   auto own = take_part(part, parameters, tensors);                     // its tensors, which the base does not have
//   fill_part(part, "runs/controlnet", parameters, own, mesh, true, nullptr, read_folder);
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/nn/parameter.h"

namespace colossal::run {

struct ModelSource;

/// The tensors of a part, under the names of their parameters.
using PartTensors = std::vector<checkpoint::NamedTensor>;

/// A kind of part.
struct AddedPart {
  const char* kind;                        ///< value of adapter.kind of a run that trains it
  bool (*is_of)(const std::string& name);  ///< returns true for the name of one of its parameters
  /// Returns the parameter of the base whose values that parameter of a new part starts from; none = values of its own
  std::optional<std::string> (*origin)(const std::string& name);
};

/// Returns true for a run that trained such a part.
bool is_run_of(const AddedPart& part, const std::string& path);

/// Moves the parameters of the part from `tensors` into the result.
PartTensors take_part(const AddedPart& part, const nn::Parameters& parameters, PartTensors& tensors);

/// Declares the parameters of the part alone, as a file of its own has them. With `values` they share the memory of
/// these, else they have none.
std::unique_ptr<nn::Parameters> part_alone(const AddedPart& part, const nn::Parameters& parameters,
                                           const PartTensors* values = nullptr);

/// Writes the part at a path into `tensors`, the result of take_part(): from the newest checkpoint of a run, or with
/// `read`, which is given part_alone() and the tensors. `uses_average`: of a run with training.ema. `base`: the source
/// of the model's other weights, which must be those on which a run trained the part; null = not checked.
/// Collective among all ranks of `mesh`. Errors: those of `read`; ("run") another base; those of checkpoint::load().
void fill_part(const AddedPart& part, const std::string& path, const nn::Parameters& parameters, PartTensors tensors,
               comm::Mesh& mesh, bool uses_average, const ModelSource* base,
               const std::function<void(const nn::Parameters& alone, const PartTensors& tensors)>& read);

/// Writes the values with which a new part starts into `tensors`: those of AddedPart::origin in `base`. Others keep
/// their values, and of a preset all do. Collective, as read_source().
void copy_into_part(const AddedPart& part, const ModelSource& base, const nn::Parameters& parameters,
                    const PartTensors& tensors, comm::Mesh& mesh);

}  // namespace colossal::run
