// The activations and operations of a model's blocks, measured on shapes alone, as a chain for plan/rotor.h.
//
//   const auto chains = train::measured_chains({config, shape}, {{.first = 0, .last = 12, .ends = true}});
//   chains[0].stages[5].saved;      // bytes that block 5 keeps for backward
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/plan/rotor.h"
#include "colossal/train/run_models.h"

namespace colossal::train {

/// Consecutive blocks that a rank runs as one stage of a pipeline.
struct StageBlocks {
  int64_t first = 0, last = 0;  ///< blocks [first, last)
  bool ends = false;            ///< true = the norm, the head and the loss follow
};

/// Returns a chain for each of `stages` of the main model, which must be in ascending order: the blocks of the stage,
/// and what ends it.
/// Sizes are those of one micro-batch on the first rank of [parallel] without its pipeline, whose parts are the
/// largest where sizes do not divide. So all ranks that run a stage together get the same chain, without communication.
/// They are counted by a memory::Account as in record_step(); parameters and their gradients do not count.
///
/// Times are floating-point operations, and one more for each byte that a pass allocates, which stands for the
/// elementwise work. They do not depend on the machine.
/// A state that several blocks read counts as an input of each, though it exists once: such chains are upper bounds.
/// With fp8 the products count as those of bf16. The embedding does not count, nor does a loss that the caller of
/// Engine::train_step() brings for a model without the objective's parts.
///
/// No communication, and no tensor has memory. Time: forward twice and backward once of each block, a few milliseconds;
/// blocks before the stages once forward.
/// Errors: as initialize(). "memory": a model with operators that LibTorch cannot run on shapes alone.
std::vector<plan::Chain> measured_chains(const ConfiguredRun& run, const std::vector<StageBlocks>& stages);

}  // namespace colossal::train
