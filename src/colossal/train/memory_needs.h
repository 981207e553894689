// What a training run needs of memory, known before any of it is taken.
//
//   const auto needs = train::memory_needs(config, {{"", shape}}, world.rank());
//   log.info("memory of this rank: ", train::to_string(needs));   // "parameters 3.1 MiB, ..., states 6.2 MiB (device)"
//
//   train::check_memory(config, {{"", shape}}, at::kCPU, world.local_size());     // refuses what cannot fit
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/run/config.h"
#include "colossal/train/named_model.h"

namespace colossal::train {

/// One row of the list.
struct MemoryNeed {
  std::string model;  ///< its name
  std::string what;   ///< "parameters", "gradients", "masters", "states"; with tiers also the rows named below
  int64_t bytes = 0;
  /// "device": where the rank computes, on a CPU the host; "host": memory.host; "host or disk": where tiers put it
  std::string place;
};

/// What rank `rank` holds of each model between the last backward pass of a step and its update. Counted are the
/// declared parameters of the models, built on the meta device for this rank of the layout, with the padding of chunks
/// and the states that the optimizer adds. Not counted are activations, temporaries and gathered copies. A row of 0
/// bytes is left out.
///
/// With tiers of [memory] each model also has the rows of tier_needs():
///   "at once"          the smallest budget memory.host, if everything else is on a disk
///   "without a disk"   the smallest budget memory.host, if there is no disk
///   "largest chunk"    the smallest budget memory.device
///
/// Nothing is communicated. Memory and time: those of a model without values, milliseconds for a hundred layers.
/// Errors: those of initialize() about config and shape, except a number of ranks that differs; ("model") a model of
///         more than 2^53 elements.
std::vector<MemoryNeed> memory_needs(const run::Config& config, const std::vector<NamedModel>& models, int rank);

/// For people, rows of one place together: "parameters 3.1 MiB, gradients 3.1 MiB (device), at once 2.0 MiB (host)".
std::string to_string(const std::vector<MemoryNeed>& needs);

/// Bytes that the processes of this machine can have: its memory and swap, or what the cgroup allows of them.
double usable_memory();

/// Errors ("model"): models that certainly do not fit into `limit` bytes for the `local` ranks of the run that are on
/// this machine, with the needs, the limit and what to change; those of memory_needs(). Nothing is checked if ranks
/// compute on an accelerator, as `device` says, if memory.disk is set, or if only some ranks of a pipeline, whose
/// stages differ, are on this machine.
void check_memory(const run::Config& config, const std::vector<NamedModel>& models, at::Device device, int64_t local,
                  double limit = usable_memory());

}  // namespace colossal::train
