#include "colossal/train/measured_chain.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/account.h"
#include "colossal/memory/device_meter.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/flops.h"
#include "colossal/train/engine.h"
#include "colossal/train/placed_model.h"

namespace colossal::train {
namespace {

using models::States;
/// A part of a model: from the states before it to those after it.
using ModelPart = std::function<States(States)>;

int64_t bytes_of(const States& states) {
  int64_t bytes = 0;
  for (const at::Tensor& state : states)
    if (state.defined()) bytes += static_cast<int64_t>(state.nbytes());
  return bytes;
}

/// Measures one part after another.
class PartMeter {
 public:
  explicit PartMeter(const models::Model& model) : model_(model), account_(memory::counted_on(at::kMeta)) {}

  /// Measures `run` from `states`, and replaces these by what it returns.
  plan::ChainStage measured(const ModelPart& run, States& states) {
    plan::ChainStage stage{.input = bytes_of(states)};
    const States inputs = leaves_of(states);
    const tensor::FlopCount operations;
    {
      const at::NoGradGuard no_grad;
      begin();
      const States out = run(inputs);
      stage.forward_temporary = std::max<int64_t>(0, most() - bytes_of(out));
      stage.forward = operations.total() + static_cast<double>(most());
    }
    begin();
    const States out = run(inputs);
    stage.saved = now() - before_;
    stage.saved_temporary = most() - stage.saved;
    std::vector<at::Tensor> roots, gradients;
    for (const at::Tensor& state : out) {
      if (!state.defined() || !state.requires_grad()) continue;
      roots.push_back(state);
      gradients.push_back(at::empty_like(state));
    }
    const double forward = operations.total();
    begin();
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    stage.backward_temporary = most();
    stage.backward = operations.total() - forward + static_cast<double>(most());
    states.clear();
    for (const at::Tensor& state : out) states.push_back(state.defined() ? state.detach() : state);
    return stage;
  }

 private:
  States leaves_of(const States& states) const {
    States leaves;
    for (size_t i = 0; i < states.size(); ++i) {
      const bool has_gradient = model_.states.empty() || model_.states[i].has_gradient;
      leaves.push_back(states[i].defined() ? states[i].detach() : states[i]);
      if (leaves.back().defined() && leaves.back().is_floating_point()) leaves.back().requires_grad_(has_gradient);
    }
    return leaves;
  }
  int64_t now() const { return account_.usage().device; }
  void begin() {
    account_.reset_peaks();
    before_ = now();
  }
  /// Returns the most bytes since begin() beyond those that existed then.
  int64_t most() const { return account_.usage().peak_device - before_; }

  const models::Model& model_;
  memory::Account account_;
  int64_t before_ = 0;
};

/// The whole model on one stage, as its first rank has it.
class MeasuredModel {
 public:
  explicit MeasuredModel(const ConfiguredRun& run)
      : objective_(run.objective()),
        on_shapes_(run, run.models.main(), /*rank=*/0, /*has_values=*/true),
        built_(on_shapes_.model()) {
    // Gradients exist before the first pass, so that backward adds to them in place, as in a run.
    for (nn::Parameter& parameter : built_.parameters())
      if (parameter.treatment.trains) parameter.value.mutable_grad() = at::empty_like(parameter.value);
    const tensor::Batch batch = run::batch_of_ones(*objective_, run.config);
    nn::ForwardContext step = nn::step_of(batch.part(0, batch.rows() / run.config.micro_batches()));
    step.training = true;
    step_ = built_.ready(step);
  }

  std::vector<plan::Chain> chains(const std::vector<StageBlocks>& stages) {
    const models::Model& model = built_.model();
    States states;
    {
      const at::NoGradGuard no_grad;
      states = models::run_stage(model, {.ends = false}, {}, step_);
    }
    PartMeter meter(model);
    std::vector<plan::Chain> chains;
    int64_t next = 0;
    for (const StageBlocks& stage : stages) {
      states = skipped(next, stage.first, std::move(states));
      plan::Chain chain;
      for (next = stage.first; next < stage.last; ++next)
        chain.stages.push_back(meter.measured([&](States in) { return through(next, next + 1, in); }, states));
      chain.stages.push_back(end_of(stage, meter, states));
      if (stage.ends) chain.output = bytes_of(states);
      for (const plan::ChainStage& part : chain.stages) chain.level = std::max(chain.level, 2 * part.input);
      chains.push_back(std::move(chain));
    }
    return chains;
  }

 private:
  States through(int64_t first, int64_t last, States states) {
    return models::run_stage(built_.model(), {.first = first, .last = last, .embeds = false, .ends = false},
                             std::move(states), step_);
  }

  States skipped(int64_t first, int64_t last, States states) {
    const at::NoGradGuard no_grad;
    for (int64_t i = first; i < last; ++i) states = through(i, i + 1, std::move(states));
    return states;
  }

  /// Returns what follows the blocks of a stage: the loss, or the gradient that the next stage sends.
  plan::ChainStage end_of(const StageBlocks& stage, PartMeter& meter, States& states) {
    if (!stage.ends) return {.input = bytes_of(states), .backward_temporary = bytes_of(states)};
    const int64_t blocks = stage.last;
    const auto to_loss = [&](States in) -> States {
      States end =
          models::run_stage(built_.model(), {.first = blocks, .last = blocks, .embeds = false}, std::move(in), step_);
      // A caller of Engine::train_step() may bring the loss of a model that the objective cannot compute.
      if (!objective_->missing_from(built_.model()).empty()) return end;
      return {objective_->loss(built_.model(), end, step_)};
    };
    return meter.measured(to_loss, states);
  }

  std::shared_ptr<const run::Objective> objective_;
  ModelOnShapes on_shapes_;
  distributed::DistributedModel& built_;
  nn::ForwardContext step_;
};

}  // namespace

std::vector<plan::Chain> measured_chains(const ConfiguredRun& run, const std::vector<StageBlocks>& stages) {
  const tensor::MeantDevice meant(simulated_by_meta(run.config.run));
  ConfiguredRun whole = run;
  whole.config.parallel.pipeline = {};
  whole.config.training.accumulate = run.config.micro_batches();
  whole.config.memory = {};
  try {
    return MeasuredModel(whole).chains(stages);
  } catch (const c10::Error& error) {
    throw Error("memory", concat("recompute = \"auto\" needs a model that runs on tensors without data (at::kMeta): ",
                                 missing_operator(error), "; set memory.recompute to block or none"));
  }
}

}  // namespace colossal::train
