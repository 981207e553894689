#include "colossal/predict/rank_load.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "colossal/models/expert_keys.h"
#include "colossal/models/task.h"
#include "colossal/nn/expert_hops.h"
#include "colossal/run/objective.h"
#include "colossal/train/engine.h"
#include "colossal/train/record_step.h"
#include "colossal/train/step_result.h"

namespace colossal::predict {
namespace {

/// Returns true if rows may hold several documents, or a text and padding, and attention then keeps a mask. Our kernels
/// of the CPU and the 16-bit kernel of accelerators read documents without one; relative positions need it everywhere.
bool may_need_masks(const run::Config& config, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  if (!task.reads_text() || config.data.documents == "joined") return false;
  const bool is_wide = c10::elementSize(config.precision.dtype()) > 2;
  return task.answers() || (is_wide && train::simulated_by_meta(config.run) != at::kCPU);
}

tensor::Batch rows_of_two_documents(const train::ConfiguredRun& run) {
  tensor::Batch rows = run::batch_of_ones(*run.objective(), run.config);
  const at::Tensor documents = rows.find("documents");
  if (!documents.defined()) return rows;
  const int64_t first = documents.size(1) / 2;
  documents.narrow(1, first, documents.size(1) - first).fill_(2);
  return rows;
}

}  // namespace

double worst_rank_load(const train::ConfiguredRun& run) {
  const run::Config& config = run.config;
  const models::ModelShape& shape = run.models.main().shape;
  const distributed::ParallelConfig& parallel = config.parallel;
  const int64_t ranks = parallel.expert.size * (parallel.expert.splits() ? 1 : parallel.tensor.size);
  const models::ExpertKeys experts = models::expert_keys_of(shape);
  if (experts.count == 0 || ranks == 1) return 1;
  const int64_t here = (experts.count + ranks - 1) / ranks;
  const auto used = static_cast<double>(experts.used);
  const auto objective = run.objective();
  const int64_t of_row = objective->tokens(objective->example(1), shape);
  const double all =
      static_cast<double>(config.training.batch_size * of_row) / static_cast<double>(config.micro_batches());
  // The ranks that exchange tokens have the tokens of one copy of the experts.
  const double tokens = all / static_cast<double>(parallel.expert_copies());
  double most = static_cast<double>(std::min(experts.used, here)) * tokens;  // assignments of a rank
  if (experts.capacity > 0) {
    const double limit = std::ceil(experts.capacity * used * all / static_cast<double>(experts.count));
    most = std::min(most, static_cast<double>(here) * limit);
  }
  return std::max(1.0, most * static_cast<double>(ranks) / (used * tokens));
}

std::optional<StepMemory> worst_memory(const train::ConfiguredRun& run, int rank) {
  const double worst = worst_rank_load(run);
  const bool has_masks = may_need_masks(run.config, run.models.main().shape);
  if (worst <= 1 && !has_masks) return std::nullopt;
  try {
    const nn::MeantLoad load(worst);
    return (has_masks ? train::record_step(run, rank, rows_of_two_documents(run)) : train::record_step(run, rank))
        .memory;
  } catch (const train::RefusedStep& error) {
    if (error.needed_bytes() == 0) throw;
    return StepMemory{.peak_bytes = error.needed_bytes(), .budget_bytes = error.needed_bytes()};
  }
}

}  // namespace colossal::predict
