// What a rank's training takes of the budgets of [memory], known before a weight is drawn or written.
//
//   train::TierNeeds needs = train::tier_needs(parameters, mesh, chunk_options, gradient_options, config.optimizer);
//   needs.agree(mesh);                       // the most of all ranks
//   train::check_budgets(needs, config, mesh.world().local_size());
#pragma once
#include <cstdint>

#include "colossal/comm/mesh.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/optim/config.h"
#include "colossal/parallel/data/chunk_gradients.h"
#include "colossal/run/config.h"

namespace colossal::train {

/// Bytes of one rank, each tensor in whole blocks of the disk (memory::whole_blocks).
struct TierNeeds {
  /// Of the host at one time, at least, all else being on a disk: what an update has leases of, or what gathers of a
  /// pass and the gradients of a chunk or segment take together
  int64_t least = 0;
  /// Of the host where there is no disk: parameters, states, and what of gradients and directions is there at one time.
  /// With masters up to a parameter more than a step that nothing disturbs has: it gives way to its gradient
  int64_t whole = 0;
  /// The largest chunk, whole, on the device
  int64_t largest_chunk = 0;
  /// That gathers have of the host while something else is brought
  int64_t of_gathers = 0;
  /// Whether `least` is of several shards (optim::Optimizer::Takes)
  bool is_of_window = false;

  /// Every number is the most of all ranks. Communication: an all_reduce of 40 bytes over all ranks.
  void agree(comm::Mesh& mesh);
};

/// Of a store of `chunks` whose home lends on the host and keeps tensors in whole blocks, as TieredHome does.
/// Nothing is kept or drawn. Makes the groups that store and optimizer make. Memory: states of one shard at a time.
/// Errors: those of memory::plan_store() and optim::make_optimizer().
TierNeeds tier_needs(nn::Parameters& parameters, comm::Mesh& mesh, const memory::ChunkOptions& chunks,
                     const parallel::GradientOptions& gradients, const optim::OptimizerConfig& optimizer);

/// Errors ("memory"): budgets of `config` that are smaller, with the smallest that works: memory.host, all ranks of a
/// machine together, and memory.device. The same on all ranks that have the same `needs` and
/// as many ranks on their machine.
void check_budgets(const TierNeeds& needs, const run::Config& config, int ranks_here);

}  // namespace colossal::train
