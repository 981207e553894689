#include "colossal/train/module_checkpoints.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/run/config_changes.h"
#include "colossal/train/generator_states.h"
#include "colossal/train/rank_inputs.h"

namespace colossal::train {
namespace {

constexpr const char* kModel = "model.";  // prefix of the names of parameters and buffers in a checkpoint
constexpr const char *kExtra = "extra", *kGenerators = "generators", *kConfig = "config";  // keys of the progress

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

}  // namespace colossal::train
