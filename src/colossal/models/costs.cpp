#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/tensor/flops.h"

namespace colossal::models {
namespace {

constexpr double kForwardAndBackward = 3;  // each product has two more in backward, for the gradients of its factors

using Loss = std::function<at::Tensor(const Model&, const States& end, const nn::ForwardContext&)>;

Costs announced(const ModelShape& shape, const tensor::Batch& example, const Loss& loss) {
  nn::Parameters parameters({}, {.device = at::kMeta});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(shape, layers);
  const nn::ForwardContext step = nn::step_of(example);
  const at::NoGradGuard no_grad;
  States states;
  const auto cost_of = [](const auto& part) {
    const tensor::FlopCount count;
    part();
    return kForwardAndBackward * count.total();
  };
  Costs costs;
  const auto run = [&](const Stage& stage) { states = run_stage(model, stage, std::move(states), step); };
  const auto blocks = static_cast<int64_t>(model.blocks.size());
  costs.first = cost_of([&] { run({.ends = false}); });
  check_sizes(model, states, step, -1);
  for (int64_t i = 0; i < blocks; ++i) {
    costs.blocks.push_back(cost_of([&] { run({.first = i, .last = i + 1, .embeds = false, .ends = false}); }));
    check_sizes(model, states, step, i);
  }
  costs.last = cost_of([&] {
    nn::ForwardContext training = step;
    training.training = true;  // multi-token layers run in training alone
    states = run_stage(model, {.first = blocks, .last = blocks, .embeds = false}, std::move(states), training);
    if (loss)
      loss(model, states, step);
    else if (model.head)
      loss_sum(model, states[0], step);
  });
  return costs;
}

/// Returns LibTorch's message, which begins with the operator, without the list of backends after it.
std::string first_sentence(const std::string& message) {
  return message.substr(0, std::min(message.find(". "), message.find('\n')));
}

}  // namespace

double Costs::sum() const { return std::accumulate(blocks.begin(), blocks.end(), first + last); }

Costs costs_of(const ModelShape& shape, const tensor::Batch& example, const Loss& loss) {
  try {
    return announced(shape, example, loss);
  } catch (const c10::Error& error) {
    throw UnknownCosts("model",
                       concat("the blocks of ", shape.architecture->name,
                              " must run on tensors without data (at::kMeta), so that their cost can be estimated: ",
                              first_sentence(error.what_without_backtrace())));
  }
}

}  // namespace colossal::models
