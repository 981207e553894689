#include "colossal/predict/shallow_step.h"

#include <algorithm>
#include <array>
#include <vector>

#include "colossal/comm/traffic.h"
#include "colossal/predict/roles.h"
#include "colossal/predict/step.h"
#include "colossal/schedule/make.h"

namespace colossal::predict {
namespace {

/// Parts of a step: before the first backward pass, the two halves until the end of the last one, and the update.
constexpr size_t kParts = 4;

/// A recorded step of a model with few blocks.
struct Sample {
  double seconds = 0;
  std::vector<std::array<double, kParts>> peaks;  ///< bytes, by role
};

int64_t stages_of(const run::Config& config) {
  const parallel::PipelineConfig& pipeline = config.parallel.pipeline;
  if (pipeline.size == 1) return 1;
  return schedule::placement_of({.name = pipeline.schedule,
                                 .stages = static_cast<int>(pipeline.size),
                                 .micro_batches = static_cast<int>(config.micro_batches()),
                                 .chunks = static_cast<int>(pipeline.chunks)})
      .stages();
}

/// Returns the most bytes of each part. Within a part the same kind of memory grows with the blocks: activations until
/// the middle of backward, gradients after it.
std::array<double, kParts> peaks_of(const train::RecordedStep& step) {
  const auto is_backward = [](const StepEvent& event) {
    return event.phase == static_cast<uint8_t>(comm::Phase::Backward);
  };
  const auto first = std::find_if(step.list.begin(), step.list.end(), is_backward);
  const auto last = std::find_if(step.list.rbegin(), step.list.rend(), is_backward);
  const int64_t begin = first - step.list.begin(), end = step.list.rend() - last, middle = (begin + end) / 2;
  std::array<double, kParts> peaks{};
  for (const StepMemory::Point& point : step.memory.curve) {
    const size_t part = point.event <= begin ? 0 : point.event <= middle ? 1 : point.event <= end ? 2 : 3;
    peaks.at(part) = std::max(peaks.at(part), static_cast<double>(point.kinds.device()));
  }
  return peaks;
}

Sample sample_of(train::ConfiguredRun run, const plan::Cluster& cluster, int64_t blocks) {
  const int64_t stages = stages_of(run.config);
  models::ModelShape shape = run.models.main().shape;
  shape.layers = stages * blocks;
  run.models = run.models.with_shape(std::move(shape));
  run.config.model.layers = 0;  // the shape decides
  if (run.config.parallel.pipeline.size > 1)
    run.config.parallel.pipeline.layers_per_stage.assign(static_cast<size_t>(stages), blocks);
  const RecordedRoles roles = record_stages(run, cluster);
  Sample sample{.seconds = predict_step(run, roles, cluster).step_seconds};
  for (const RecordedRole& role : roles) sample.peaks.push_back(peaks_of(role.step));
  return sample;
}

}  // namespace

std::optional<ShallowStep> shallow_step(const train::ConfiguredRun& run, const plan::Cluster& cluster) {
  const run::Config& config = run.config;
  if (config.memory.has_tiers() || config.memory.recompute == "auto" || config.parallel.max_gathered_mib > 0)
    return std::nullopt;
  const Sample one = sample_of(run, cluster, 1), two = sample_of(run, cluster, 2);
  const double more = static_cast<double>(run.models.main().shape.layers) / static_cast<double>(stages_of(config)) - 1;
  ShallowStep step{.seconds = one.seconds + more * (two.seconds - one.seconds)};
  for (size_t role = 0; role < one.peaks.size(); ++role)
    for (size_t part = 0; part < kParts; ++part) {
      const double first = one.peaks[role][part], growth = two.peaks[role][part] - first;
      step.peak_bytes = std::max(step.peak_bytes, first + more * growth);
    }
  return step;
}

double shallow_work(const run::Config& config) {
  const int64_t stages = stages_of(config);
  return recording_work(config, stages) + recording_work(config, 2 * stages);
}

}  // namespace colossal::predict
