// The memory of a rank in the worst step that the config permits: with experts that are loaded as unevenly as possible,
// and with rows of several documents.
//
//   const double worst = predict::worst_rank_load(run);          // 4: all tokens go to one of 4 ranks
//   if (const auto memory = predict::worst_memory(run, 0)) ...;  // bytes of rank 0 then
#pragma once
#include <optional>

#include "colossal/base/step_memory.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

/// Returns the largest rank load (plan::RankLoads) that the config permits: every token goes to as many experts of one
/// rank as it can, and experts.capacity limits what each expert takes. 1 for a dense model, or if one rank has all
/// experts.
double worst_rank_load(const train::ConfiguredRun& run);

/// Returns the memory of the worst step of `rank`: at worst_rank_load(), with two documents in each row if the data may
/// have several and attention then needs masks. Returns nothing if all steps are alike. If the step needs more than
/// memory.device, only peak_bytes and budget_bytes are set: to the smallest budget that works.
/// Cost and other errors: those of train::record_step().
std::optional<StepMemory> worst_memory(const train::ConfiguredRun& run, int rank);

}  // namespace colossal::predict
