// The states of LibTorch's default random generators, which dropout of a module draws from.
//
//   nlohmann::json progress;
//   progress["generators"] = train::gathered_generators(world, device);   // saved with a checkpoint
//   ...
//   train::restore_generators(progress["generators"], world, device);
#pragma once
#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>

#include "colossal/comm/group.h"

namespace colossal::train {

/// Returns the states of each rank's generators on rank 0, in the order of ranks, and an empty list on other ranks.
/// They are those of the CPU, and if `device` is a GPU of CUDA, of that GPU. A list of 8 ranks has 80 KiB as text.
///
/// Communication: as comm::gather_text(), 10 KiB of each rank. Collective.
nlohmann::json gathered_generators(comm::Group& ranks, at::Device device);

/// Sets this rank's generators to their states in `all`, a result of gathered_generators(). Changes nothing if `all`
/// is of another number of ranks, or null. A generator that was not saved keeps its state. Does not communicate.
/// Errors ("checkpoint"): `all` is not such a result; no generator is changed.
void restore_generators(const nlohmann::json& all, const comm::Group& ranks, at::Device device);

}  // namespace colossal::train
