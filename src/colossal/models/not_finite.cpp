#include "colossal/models/not_finite.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::models {
namespace {

bool are_finite(const States& states) {
  return std::all_of(states.begin(), states.end(), [](const at::Tensor& state) {
    return !state.defined() || !state.is_floating_point() || state.isfinite().all().item<bool>();
  });
}

}  // namespace

std::string first_not_finite(const Model& model, const Stage& stage, States states, const nn::ForwardContext& step) {
  const at::NoGradGuard no_grad;
  if (stage.embeds) {
    states = run_stage(model, {.first = 0, .last = 0, .embeds = true, .ends = false}, {}, step);
    if (!are_finite(states)) return "embedding";
  }
  for (int64_t i = stage.first; i < stage.last; ++i) {
    states = run_stage(model, {.first = i, .last = i + 1, .embeds = false, .ends = false}, std::move(states), step);
    if (!are_finite(states)) return concat("blocks.", i);
  }
  if (!stage.ends) return "";
  states = run_stage(model, {.first = stage.last, .last = stage.last, .embeds = false, .ends = true}, std::move(states),
                     step);
  return are_finite(states) ? "" : "norm";
}

std::string finite_remedy(at::ScalarType dtype) {
  return dtype == at::kHalf ? " in fp16, which ends at 65504; use bf16, as with --precision bf16"
                            : "; the weights or the inputs are damaged";
}

}  // namespace colossal::models
