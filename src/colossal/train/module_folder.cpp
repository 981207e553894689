#include "colossal/train/module_folder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/known_metrics.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/comm/agreement.h"
#include "colossal/memory/device_meter.h"
#include "colossal/report/run_records.h"
#include "colossal/report/step_metrics.h"
#include "colossal/run/config_changes.h"
#include "colossal/train/generator_states.h"
#include "colossal/train/rank_inputs.h"
#include "colossal/train/run_output.h"
#include "colossal/train/start_folder.h"

namespace colossal::train {
namespace {

constexpr const char* kModel = "model.";  // prefix of the names of parameters and buffers in a checkpoint
constexpr const char *kExtra = "extra", *kGenerators = "generators", *kConfig = "config";  // keys of the progress

void require_no_other_run(const RunFolder& folder) {
  const checkpoint::StepFolders own = checkpoint::step_folders(folder.path());
  const bool has_own = !own.complete.empty() || !own.skipped.empty();
  require(
      !has_own && checkpoint::complete_steps(folder.checkpoints()).empty(), "run", "the folder ", folder.path(),
      " already holds a checkpoint, and this training begins anew: call resume() before record(), or choose another "
      "folder");
}

}  // namespace

ModuleCheckpoints::ModuleCheckpoints(std::string folder, comm::Mesh& mesh, const run::Config& config,
                                     Optimization& optimization, at::Device device)
    : mesh_(mesh),
      config_(config),
      optimization_(optimization),
      device_(device),
      checkpoints_(std::move(folder), mesh, config.training.keep_last) {}

void ModuleCheckpoints::add_buffer(const std::string& name, at::Tensor value, tensor::ShardSpec spec) {
  buffers_.push_back({name, std::move(value), std::move(spec)});
}

checkpoint::TrainingState ModuleCheckpoints::state() {
  checkpoint::TrainingState state = optimization_.state();
  for (const auto& [name, value, spec] : buffers_) {
    const bool widens = value.is_floating_point() && config_.precision.has_masters();
    state.tensors.push_back(
        {concat(kModel, name),
         value.to(widens ? at::kFloat : value.scalar_type(), /*non_blocking=*/false, /*copy=*/true).contiguous(),
         spec,
         {}});
  }
  return state;
}

void ModuleCheckpoints::loaded(const checkpoint::TrainingState& filled) {
  const at::NoGradGuard no_grad;
  const size_t first = filled.tensors.size() - buffers_.size();
  for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].value.copy_(filled.tensors[first + i].value.read().value);
  optimization_.loaded(filled);
}

void ModuleCheckpoints::save(const nlohmann::json& extra) {
  nlohmann::json beside{{kGenerators, gathered_generators(mesh_.all(), device_)}, {kConfig, to_toml(config_)}};
  if (!extra.is_null()) beside[kExtra] = extra;
  checkpoints_.save(*this, beside);
}

Resumed ModuleCheckpoints::load() { return load(checkpoints_.steps()); }

Resumed ModuleCheckpoints::load(const checkpoint::StepFolders& steps) {
  // A newer step that is incomplete is not skipped silently, because there is no log here to report it.
  comm::agree(mesh_.all(), at::kCPU, [&] {
    const std::string skipped = steps.skipped_after(steps.newest());
    require(steps.complete.empty() || skipped.empty(), "checkpoint",
            "the newest step folder must be complete: ", skipped,
            "; restore it, or move it away to continue from step ", steps.newest());
  });
  Resumed resumed;
  const auto restore = [&](const nlohmann::json& progress) {
    resumed.extra = progress.value(kExtra, nlohmann::json());
    resumed.changes = run::listed(run::changes_since(progress, config_), run::KeyEffect::Training);
    restore_generators(progress.value(kGenerators, nlohmann::json()), mesh_.all(), device_);
  };
  checkpoints_.resume(*this, steps, steps.complete.empty() ? std::nullopt : std::optional(steps.newest()),
                      {.restore = restore});
  require_same_weights(mesh_, optimization_.weights(), optimization_.state().sharers, WeightOrigin::Read);
  resumed.step = steps_done();
  return resumed;
}

std::optional<Resumed> ModuleCheckpoints::resume() {
  const checkpoint::StepFolders steps = checkpoints_.steps();
  if (steps.complete.empty() && steps.skipped.empty()) return std::nullopt;
  return load(steps);
}

ModuleRecord::ModuleRecord(const std::string& folder, comm::Mesh& mesh, const run::Config& config,
                           const RecordedStart& start)
    : mesh_(mesh), folder_(folder), device_(start.device) {
  comm::World& world = mesh.world();
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (world.rank() != 0) return;
    if (start.steps_done == 0) require_no_other_run(folder_);
    create_folder(folder_.tensorboard());
    run::Config own = config;
    own.run.folder = folder;
    write_file(folder_.config(), to_toml(own));
    log_.emplace(LogOptions{.size = world.size(), .screen = LogLevel::kWarning, .file = folder_.log(0)});
    const auto after = start.steps_done > 0 ? std::optional(start.steps_done) : std::nullopt;
    output_ = std::make_unique<RunOutput>(folder_, after, config.training.steps, *log_, ProgressStyle::kSilent);
    report::StartRecord first = start_record(mesh, start.module, start.parameters);
    first.kind = start.steps_done > 0 ? "resume" : "new";
    first.after = start.steps_done;
    first.command = start.command;
    output_->record(first);
  });
}

ModuleRecord::~ModuleRecord() { flush(); }

void ModuleRecord::end_step(int64_t step, const StepResult& result, double loss, double weight) {
  flush();
  constexpr int64_t kValues = 4;
  const double seconds = watch_.restart();
  const at::Tensor own =
      at::tensor({weight > 0 ? weight * loss : 0.0, weight, seconds, static_cast<double>(memory::peak_bytes(device_))},
                 at::kDouble);
  at::Tensor all = at::empty({mesh_.world().size(), kValues}, at::kDouble);
  at::Tensor flat = all.view(-1);
  mesh_.all().all_gather(flat, own).wait();
  report::RankMetrics ranks{.step = step};
  double sum = 0, weights = 0;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const double* values = all.const_data_ptr<double>() + rank * kValues;
    sum += values[0], weights += values[1];
    ranks.seconds.push_back(values[2]);
    ranks.peak_bytes.push_back(static_cast<int64_t>(values[3]));
  }
  row_ = std::make_unique<report::StepMetrics>(step);
  row_->add({known_metric("loss", sum / weights), known_metric("learning_rate", result.learning_rate),
             known_metric("grad_norm", result.gradient_norm),
             known_metric("peak_bytes", *std::max_element(ranks.peak_bytes.begin(), ranks.peak_bytes.end())),
             known_metric("seconds", *std::max_element(ranks.seconds.begin(), ranks.seconds.end()))});
  rank_values_ = std::make_unique<report::RankMetrics>(std::move(ranks));
}

void ModuleRecord::note(const std::string& name, double value) {
  require(row_ != nullptr, "training", "a value must belong to a step: got ", name,
          " before the first step(), or after zero_grad(); add it right after step()");
  Metric metric = find_known_metric(name).value_or(Metric{.name = name, .value = value, .plot = name});
  const bool is_count = metric.unit == "tokens" || metric.unit == "bytes";
  metric.value = is_count ? Metric::Value(std::llround(value)) : Metric::Value(value);
  row_->add(std::move(metric));
}

void ModuleRecord::flush() {
  if (output_ && row_) output_->write(*row_, *rank_values_);
  row_.reset();
}

}  // namespace colossal::train
