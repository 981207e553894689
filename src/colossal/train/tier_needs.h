// The part of the budgets of [memory] that training needs on a rank, computed before a weight is drawn or written.
//
//   train::TierNeeds needs = train::tier_needs(parameters, mesh, store_options(config, dtype), config.optimizer);
//   needs.agree(mesh);                       // the maximum over all ranks
//   train::check_budgets(needs, config.memory, config.optimizer.name, mesh.world().local_size());
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/optim/config.h"
#include "colossal/run/config.h"
#include "colossal/train/model_optimizers.h"
#include "colossal/train/store_options.h"

namespace colossal::train {

/// Memory needs of one rank in bytes, each tensor rounded up to whole blocks of the disk (memory::whole_blocks).
struct TierNeeds {
  /// minimum of host memory at one time if all other tensors are on a disk: the leases of an update, or the gathers of
  /// a pass together with the gradients of a chunk or segment
  int64_t min_host_bytes = 0;
  /// host memory if there is no disk: parameters, states, and the gradients and directions that exist at one time. With
  /// master weights this may be up to one parameter more than an undisturbed step uses, because a parameter is freed
  /// for its gradient
  int64_t whole = 0;
  /// the largest chunk, gathered, on the device
  int64_t largest_chunk = 0;
  /// host memory of gathers while other tensors are loaded
  int64_t of_gathers = 0;
  /// true: `min_host_bytes` is the need of several shards (optim::Optimizer::Takes)
  bool is_of_window = false;

  /// Replaces every number by the maximum of all ranks. Communication: an all_reduce of 40 bytes over all ranks.
  void agree(comm::Mesh& mesh);
};

/// Returns the needs of a chunk store with `options`, whose offload store leases tensors on the host in whole
/// blocks, as TieredStore does. `ema` is training.ema. Nothing is stored or drawn. Creates the groups that store and
/// optimizer create. Memory: the states of one shard at a time. Errors: as memory::plan_store() and
/// optim::make_averaging_optimizer().
TierNeeds tier_needs(nn::Parameters& parameters, comm::Mesh& mesh, const StoreOptions& options,
                     const optim::OptimizerConfig& optimizer, const std::vector<OwnOptimizer>& own = {},
                     double ema = 0);

/// Checks the budgets of `memory` for the optimizer of that name: memory.host, for all ranks of a machine together, and
/// memory.device. Errors ("memory"): a budget that is too small, with the smallest that works. The same on all ranks
/// with the same `needs` and the same number of ranks on their machine.
void check_budgets(const TierNeeds& needs, const run::MemoryConfig& memory, const std::string& optimizer,
                   int ranks_here);

}  // namespace colossal::train
