// Plans how the budgets of [memory] are used for the weights of a model that generates.
//
//   const run::WeightBudget budget = run::plan_weights(model.parameters(), memory, ranks_of_this_machine);
//   run::check_weight_budget(budget, memory, ranks_of_this_machine, device);
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <set>

#include "colossal/memory/tiers/loaded_store.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/config.h"

namespace colossal::run {

/// The storage plan for weights that one rank only reads, in bytes of that rank.
///
/// On an accelerator a fixed, evenly spread set of parameters is always resident. It is as large as memory.device
/// allows in addition to the chunks that are whole at once; none of it is in host memory or on disk. The other
/// parameters are copied to the accelerator chunk by chunk, from host buffers of at most one chunk each. On the CPU,
/// parameters are read directly from host memory.
///
/// With placement "auto", a fixed set of the parameters that are not on the accelerator is always in host memory
/// (memory::LoadedStore). The others are read from disk in the order of the previous pass. With "lru" and "static", the
/// eviction policy decides on all of them.
struct WeightBudget {
  /// Smallest budgets of this rank that work; at most the given ones if those work. 0 = none is needed, because
  /// memory.device is not set or all weights fit. min_host without memory.host: at most `host`
  int64_t min_device = 0, min_host = 0;
  std::set<const nn::Parameter*> on_device{};  ///< parameters that are always on the accelerator
  int64_t chunk = 0;                           ///< bytes of a chunk; larger parameters have a chunk each
  /// Bytes of host memory in use, at most the bytes of the weights stored there
  int64_t host = 0;
  int64_t travelling = 0;  ///< part of `host` for transfers: chunks in use, the next ones, and chunks read ahead
  memory::LoadedStore::Residence residence{};  ///< residence of the other weights

  /// True = not all weights that are off the accelerator fit into host memory
  bool needs_disk() const { return min_host > 0; }
};

/// Plans the budgets of one of `ranks` ranks, which share memory.host, for its `parameters` on their device. Without
/// memory.device, no parameter is resident there. Without memory.host the host gets as little as transfers need if
/// there is a disk, otherwise all weights. Parameters on meta are planned for the device that meta stands for
/// (tensor/device_meant.h).
WeightBudget plan_weights(const nn::Parameters& parameters, const MemoryConfig& memory, int64_t ranks);

/// Checks the budgets of `memory` for `ranks` ranks of a machine that compute on `device`, of which none needs more
/// than `needed`. Errors ("memory"): a budget that is too small (the message names the smallest that works);
/// memory.device for ranks that compute on the CPU.
void check_weight_budget(const WeightBudget& needed, const MemoryConfig& memory, int64_t ranks, at::Device device);

}  // namespace colossal::run
