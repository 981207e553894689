// How the budgets of [memory] serve the weights of a model that generates.
//
//   const run::WeightBudget budget = run::plan_weights(model.parameters(), memory, ranks_of_this_machine);
//   require(memory.device >= budget.least_device, "memory", "the smallest that works is ", budget.least_device);
#pragma once
#include <cstdint>
#include <set>

#include "colossal/memory/tiers/loaded_home.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/config.h"

namespace colossal::run {

/// Where weights are that one rank only reads, in bytes of that rank.
///
/// On an accelerator a fixed set of parameters, spread evenly, stays for good, as far as memory.device has room for
/// beside the chunks that are whole at a time; nothing of it is on the host or the disk. The others are copied there
/// chunk by chunk, from buffers of the host that hold no more than a chunk each. On the CPU they are read where they
/// lie in host memory.
///
/// With placement "auto" a fixed set of what is not on the accelerator stays on the host (memory::LoadedHome), and the
/// rest comes from the disk in the order that the pass before had. With "lru" and "static" the policy decides on all of
/// it.
struct WeightBudget {
  /// The smallest budgets that work: at most those that were given, if these do. Without a limit: 0, or at most `host`
  int64_t least_device = 0, least_host = 0;
  std::set<const nn::Parameter*> on_device{};  ///< that stay on the accelerator
  int64_t chunk = 0;                           ///< of a chunk; larger parameters are alone
  int64_t host = 0;                            ///< all of the host's, at most those of the weights that are there
  int64_t travelling = 0;  ///< of these for what comes and goes: read at once, next, and ahead of that
  memory::LoadedHome::Residence residence{};  ///< of the rest

  bool needs_disk() const { return least_host > 0; }  ///< the host has not all that is not on the accelerator
};

/// The budgets of one of `ranks`, which share memory.host, for its `parameters`, on the device that these are of.
/// Without memory.device nothing stays there. Without memory.host: as little as transfers need, if there is a disk,
/// else all weights.
WeightBudget plan_weights(const nn::Parameters& parameters, const MemoryConfig& memory, int64_t ranks);

}  // namespace colossal::run
