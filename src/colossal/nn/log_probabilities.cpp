#include "colossal/nn/log_probabilities.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "colossal/ops/dispatch.h"
#include "colossal/ops/soft_cap.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using OfSlice = std::function<at::Tensor(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& bias)>;

struct OfSliceCapsule : torch::CustomClassHolder {
  explicit OfSliceCapsule(OfSlice function) : function(std::move(function)) {}
  OfSlice function;
};

/// Like recomputed(), but weight and bias are inputs too. With recomputed() the backward pass of each slice would end
/// at the parameters, and a gradient reducer accepts one gradient of a parameter per pass.
struct Slice : torch::autograd::Function<Slice> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const c10::IValue& function) {
    const at::Tensor b = bias.value_or(at::Tensor());
    context->save_for_backward({tokens, weight, b});
    context->saved_data["function"] = function;
    return of(function)(tokens, weight, b);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    variable_list inputs = context->get_saved_variables();
    for (at::Tensor& input : inputs)
      if (input.defined()) input = input.detach().requires_grad_(input.requires_grad());
    {
      const at::AutoGradMode again(true);
      const at::Tensor values = of(context->saved_data["function"])(inputs[0], inputs[1], inputs[2]);
      torch::autograd::backward({values}, {gradients[0]});
    }
    const auto gradient = [](const at::Tensor& input) { return input.defined() ? input.grad() : at::Tensor(); };
    return {gradient(inputs[0]), gradient(inputs[1]), gradient(inputs[2]), at::Tensor()};
  }
  static const OfSlice& of(const c10::IValue& capsule) {
    return static_cast<const OfSliceCapsule*>(capsule.toCapsule().get())->function;
  }
};

/// Returns the log-probabilities of labels [rows], computed from this rank's columns of their logits.
at::Tensor of_logits(const at::Tensor& given, const at::Tensor& labels, const VocabularyPart& words) {
  at::Tensor logits = ops::soft_capped(given.to(ops::wide_type(given)), words.soft_cap);
  const int64_t columns = logits.size(-1), valid = words.range.valid < 0 ? columns : words.range.valid;
  if (valid < columns)
    logits =
        logits.masked_fill(at::arange(columns, labels.options()) >= valid, -std::numeric_limits<double>::infinity());
  at::Tensor largest = logits.detach().amax(-1);
  if (words.max) words.max(largest);
  const at::Tensor shifted = logits - largest.unsqueeze(-1), column = labels - words.range.first;
  // One rank has the word of a label; all others add 0.
  const at::Tensor elsewhere = column.lt(0).bitwise_or(column.ge(valid));
  const at::Tensor of_label = shifted.gather(-1, column.masked_fill(elsewhere, 0).unsqueeze(-1)).squeeze(-1);
  at::Tensor sums = at::stack({shifted.exp().sum(-1), of_label.masked_fill(elsewhere, 0)});
  if (words.sum) sums = words.sum(sums);
  return (sums[1] - sums[0].log()).masked_fill(labels.eq(ops::kIgnoredLabel), 0);
}

}  // namespace

at::Tensor log_probabilities(const at::Tensor& tokens, const at::Tensor& weight, const at::Tensor& bias,
                             const at::Tensor& labels, int64_t slice, const VocabularyPart& words) {
  const bool wants_gradients = at::GradMode::is_enabled() && (tokens.requires_grad() || weight.requires_grad() ||
                                                              (bias.defined() && bias.requires_grad()));
  const int64_t length = labels.size(1);
  std::vector<at::Tensor> values;
  for (int64_t from = 0; from == 0 || from < length; from += slice) {
    const int64_t size = std::min(slice, length - from);
    const OfSlice of_slice = [words, own = labels.narrow(1, from, size).flatten()](
                                 const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
      return of_logits(words.logits(x, w, b), own, words);
    };
    const at::Tensor x = tokens.narrow(0, from, size);
    const at::Tensor own =
        wants_gradients ? Slice::apply(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt,
                                       c10::IValue::make_capsule(c10::make_intrusive<OfSliceCapsule>(of_slice)))
                        : of_slice(x, weight, bias);
    values.push_back(own.view({labels.size(0), size}));
  }
  return at::cat(values, 1);
}

}  // namespace colossal::nn
