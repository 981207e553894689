#include "colossal/ops/cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/ops/counted_rows.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/gradient_sum.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/soft_cap.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Problem {
  at::Tensor hidden, weight, bias, labels;
  VocabularyRange range;
  RankReduction* reduction;
  Projection* projection;
  int64_t slice;
  double soft_cap;
  bool hidden_gradient, weight_gradient, bias_gradient;
};

struct Result {
  at::Tensor loss, hidden_gradient, weight_gradient, bias_gradient;
};

// Steps of the softmax of a slice of logits [t, rows], in place, one row per token. Skipped tokens get maximum 0, sum
// 0, target 0 and a zero gradient; loss_of() leaves them out of the loss.
class SoftmaxSlice {
 public:
  SoftmaxSlice(at::Tensor logits, const at::Tensor& labels, const VocabularyRange& range)
      : logits_(std::move(logits)), labels_(labels), range_(range) {}
  virtual ~SoftmaxSlice() = default;

  /// Returns the largest valid logit of each token: [t].
  virtual at::Tensor largest() = 0;
  /// Replaces logits by e^(logits - largest). Returns [2, t]: their sums, and the label's logit - largest if it is a
  /// local word.
  virtual at::Tensor exponentials(const at::Tensor& largest) = 0;
  /// Replaces the exponentials by softmax - one-hot of the label.
  virtual void gradient(const at::Tensor& sums) = 0;

 protected:
  at::Tensor logits_, labels_;
  VocabularyRange range_;
};

// The steps by LibTorch's operators, for devices without kernels of ours. It uses bitwise operators on bool tensors,
// because meta tensors, which may stand for such a device, do not support the logical ones.
class AtenSlice final : public SoftmaxSlice {
 public:
  AtenSlice(at::Tensor logits, const at::Tensor& labels, const VocabularyRange& range)
      : SoftmaxSlice(std::move(logits), labels, range),
        counted_(labels.ne(kIgnoredLabel)),
        mine_(counted_.bitwise_and(labels.ge(range.first)).bitwise_and(labels.lt(range.first + range.valid))),
        column_((labels - range.first).clamp(0, std::max<int64_t>(range.valid, 1) - 1).unsqueeze(1)) {}

  at::Tensor largest() override {
    const double lowest = -std::numeric_limits<double>::infinity();
    logits_.slice(1, range_.valid).fill_(lowest);
    auto result = range_.valid > 0 ? logits_.amax(1) : at::full({logits_.size(0)}, lowest, logits_.options());
    return result.masked_fill_(counted_.bitwise_not(), 0);
  }
  at::Tensor exponentials(const at::Tensor& largest) override {
    logits_.sub_(largest.unsqueeze(1));
    auto sums = at::empty({2, logits_.size(0)}, logits_.options());
    if (range_.valid > 0)
      sums[1].copy_(logits_.gather(1, column_).squeeze(1).masked_fill(mine_.bitwise_not(), 0));
    else
      sums[1].zero_();
    logits_.exp_();
    sums[0].copy_(logits_.sum(1).masked_fill(counted_.bitwise_not(), 0));
    return sums;
  }
  void gradient(const at::Tensor& sums) override {
    logits_.mul_(sums[0].reciprocal().unsqueeze(1)).masked_fill_(counted_.bitwise_not().unsqueeze(1), 0);
    if (range_.valid > 0) logits_.scatter_add_(1, column_, mine_.to(logits_.scalar_type()).neg().unsqueeze(1));
  }

 private:
  at::Tensor counted_, mine_, column_;
};

// The steps by our kernels: on the CPU a range of rows per thread, else the kernels of the device.
class KernelSlice final : public SoftmaxSlice {
 public:
  KernelSlice(at::Tensor logits, const at::Tensor& labels, const VocabularyRange& range)
      : SoftmaxSlice(std::move(logits), labels.contiguous(), range), largest_(numbers_of_tokens()) {
    require(labels.device() == logits_.device(), "cross_entropy", "labels must be on the device of the logits, ",
            logits_.device(), ": got ", labels.device());
  }

  at::Tensor largest() override {
    run([](const auto& kernel, const auto& rows, auto... where) { kernel.softmax_largest(rows, where...); });
    return largest_;
  }
  at::Tensor exponentials(const at::Tensor& largest) override {
    largest_ = largest;
    sums_ = at::empty({2, logits_.size(0)}, logits_.options());
    run([](const auto& kernel, const auto& rows, auto... where) { kernel.softmax_exponentials(rows, where...); });
    return sums_;
  }
  void gradient(const at::Tensor& sums) override {
    sums_ = sums;
    run([](const auto& kernel, const auto& rows, auto... where) { kernel.softmax_gradient(rows, where...); });
  }
  /// Runs all three steps in one visit of each row, for a vocabulary that is not split. Returns the same as
  /// exponentials().
  at::Tensor at_once(bool with_gradient) {
    sums_ = at::empty({2, logits_.size(0)}, logits_.options());
    run([&](const auto& kernel, const auto& rows, auto... where) { kernel.softmax(rows, with_gradient, where...); });
    return sums_;
  }

 private:
  at::Tensor numbers_of_tokens() const { return at::empty({logits_.size(0)}, logits_.options()); }

  template <class T>
  SoftmaxRows<T> rows() const {
    T* sums = pointer<T>(sums_);
    return {logits_.size(1),
            range_.valid,
            logits_.stride(0),
            pointer<T>(logits_),
            pointer<int64_t>(labels_),
            kIgnoredLabel,
            range_.first,
            pointer<T>(largest_),
            sums,
            sums ? sums + logits_.size(0) : nullptr};
  }

  /// Calls step(table, rows, from, to), or on a device step(table, rows, number of rows, stream).
  template <class Step>
  void run(const Step& step) {
    const bool on_device = with_device_kernels(logits_, [&](auto element, const auto& table, void* stream) {
      using T = decltype(element);
      if constexpr (std::is_same_v<T, WideOf<T>>) step(table, rows<T>(), logits_.size(0), stream);
    });
    if (on_device || logits_.is_meta()) return;
    const auto on_cpu = [&](const auto& table, const auto& all) {
      const int64_t grain = std::max<int64_t>(16384 / std::max<int64_t>(all.columns, 1), 1);
      parallel_for(0, logits_.size(0), grain, [&](int64_t from, int64_t to) { step(table, all, from, to); });
    };
    if (logits_.scalar_type() == at::kDouble)
      on_cpu(kernels<double>(), rows<double>());
    else
      on_cpu(kernels<float>(), rows<float>());
  }

  at::Tensor largest_, sums_;
};

at::Tensor loss_of(const at::Tensor& sums, const at::Tensor& labels) {
  return (sums[0].log() - sums[1]).masked_fill(labels.eq(kIgnoredLabel), 0).sum();
}

template <class Slice>
at::Tensor reduced_loss(Slice&& slice, const at::Tensor& labels, RankReduction& reduction, bool gradient) {
  auto largest = slice.largest();
  reduction.max(largest);
  auto sums = slice.exponentials(largest);
  reduction.sum(sums);
  if (gradient) slice.gradient(sums);
  return loss_of(sums, labels);
}

// Replaces the logits by the gradient of the returned sum of losses.
at::Tensor softmax_loss_(const at::Tensor& logits, const at::Tensor& labels, const VocabularyRange& range,
                         RankReduction* reduction, bool gradient) {
  RankReduction identity;
  if (!tensor::is_for_cpu(logits) && !has_device_kernels(logits))
    return reduced_loss(AtenSlice(logits, labels, range), labels, reduction ? *reduction : identity, gradient);
  KernelSlice slice(logits, labels, range);
  if (reduction) return reduced_loss(slice, labels, *reduction, gradient);
  return loss_of(slice.at_once(gradient), labels);
}

// Gradients are of the bare sum until backward applies its factor, 1/tokens times the loss scale. They would overflow
// or vanish in fp16 before that. In bf16 and fp16, contributions of later slices would be lost in the sum after about a
// thousand tokens. That is why they are kept wide.
Result compute(const Problem& problem) {
  const auto& hidden = problem.hidden;
  const auto& weight = problem.weight;
  const int64_t tokens = hidden.size(0);
  const auto type = wide_type(hidden);
  const auto options = hidden.options().dtype(type);
  const bool gradient = problem.hidden_gradient || problem.weight_gradient || problem.bias_gradient;
  Result result;
  result.loss = at::zeros({}, options);
  if (problem.hidden_gradient) result.hidden_gradient = at::empty(hidden.sizes(), options);
  if (problem.weight_gradient) result.weight_gradient = at::zeros(weight.sizes(), options);
  if (problem.bias_gradient) result.bias_gradient = at::zeros(problem.bias.sizes(), options);
  const at::Tensor bias = problem.bias.defined() ? problem.bias.to(type) : at::Tensor();
  std::optional<LocalProjection> local;
  Projection& projection =
      problem.projection ? *problem.projection : local.emplace(std::min(problem.slice, tokens), weight, options);
  SoftCap cap(problem.soft_cap, gradient);
  for (int64_t from = 0; from < tokens; from += problem.slice) {
    const int64_t count = std::min(problem.slice, tokens - from);
    const auto slice = hidden.narrow(0, from, count), labels = problem.labels.narrow(-1, from, count).reshape(-1);
    const auto wide = projection.logits(slice, weight).to(type);
    if (bias.defined()) wide.add_(bias);
    cap.bend_(wide);
    result.loss += softmax_loss_(wide, labels, problem.range, problem.reduction, gradient);
    if (!gradient) continue;
    cap.unbend_(wide);
    if (problem.bias_gradient) result.bias_gradient += wide.sum(0);
    at::Tensor dhidden = problem.hidden_gradient ? result.hidden_gradient.narrow(0, from, count) : at::Tensor();
    projection.gradients(wide, problem.hidden_gradient ? &dhidden : nullptr,
                         problem.weight_gradient ? &result.weight_gradient : nullptr);
  }
  return result;
}

double number_on_host(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? *x.const_data_ptr<double>() : *x.const_data_ptr<float>();
}

// The node keeps the gradients until backward applies its factor. They are moved out of the node when used, so that the
// engine may take them over instead of copying, and so that their memory does not live as long as the graph.
struct LinearCrossEntropy : Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const std::optional<at::Tensor>& given, const at::Tensor& labels, int64_t first,
                            int64_t valid, RankReduction* reduction, Projection* projection, int64_t slice,
                            double soft_cap) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor bias = given.value_or(at::Tensor());
    const tensor::ReadScope read({weight, bias});
    auto result = compute({hidden.contiguous(),
                           weight.contiguous(),
                           bias,
                           labels,
                           {first, valid},
                           reduction,
                           projection,
                           slice,
                           soft_cap,
                           hidden.requires_grad(),
                           weight.requires_grad(),
                           bias.defined() && bias.requires_grad()});
    context->save_for_backward({weight});
    context->saved_data["hidden"] = result.hidden_gradient;
    context->saved_data["weight"] = result.weight_gradient;
    context->saved_data["bias"] = result.bias_gradient;
    return result.loss;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    require(context->saved_data.count("hidden") > 0, "cross_entropy",
            "backward can run only once: its gradients were released");
    const auto take = [&](const char* name) {
      auto gradient = std::move(context->saved_data[name]).toTensor();
      context->saved_data.erase(name);
      return gradient;
    };
    const at::Tensor none, leaf = context->get_saved_variables()[0];
    auto hidden = take("hidden"), weight = take("weight"), bias = take("bias");
    if (hidden.defined()) hidden = hidden.mul_(gradients[0]).to(leaf.scalar_type());
    if (bias.defined()) bias = bias.mul_(gradients[0]).to(leaf.scalar_type());
    if (!weight.defined()) return {hidden, none, bias, none, none, none, none, none, none, none};
    if (at::Tensor sum = gradient_sum(leaf); sum.defined()) {
      const bool is_wide = sum.scalar_type() == weight.scalar_type();
      if (is_wide && sum.is_cpu())
        sum.add_(weight, number_on_host(gradients[0]));
      else
        sum.copy_(weight.mul_(gradients[0]).add_(sum));  // rounded once, and without waiting for the device
      weight = none;
    } else {
      weight = weight.mul_(gradients[0]).to(leaf.scalar_type());
    }
    return {hidden, weight, bias, none, none, none, none, none, none, none};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                const VocabularyRange& range, RankReduction* reduction, int64_t slice,
                                Projection* projection, const at::Tensor& bias, double soft_cap) {
  const int64_t valid = range.valid < 0 ? weight.size(0) : range.valid;
  check_projected("cross_entropy", hidden, weight, bias, labels, {range.first, valid}, reduction == nullptr,
                  projection == nullptr, soft_cap);
  // The number of rows may depend on the labels only if no other rank makes calls for them.
  if (!reduction && !projection && labels.is_cpu()) {
    const CountedRows rows(labels);
    if (rows.chooses())
      return linear_cross_entropy(rows.of(hidden), weight, rows.labels(), range, nullptr, slice, nullptr, bias,
                                  soft_cap);
  }
  if (slice <= 0) slice = slice_tokens(hidden.size(0), weight.size(0), hidden.device());
  const bool wanted = hidden.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad());
  if (!at::GradMode::is_enabled() || !wanted) {
    at::NoGradGuard no_grad;
    const tensor::ReadScope read({weight, bias});
    return compute({hidden.contiguous(),
                    weight.contiguous(),
                    bias,
                    labels,
                    {range.first, valid},
                    reduction,
                    projection,
                    slice,
                    soft_cap,
                    false,
                    false,
                    false})
        .loss;
  }
  const auto given = bias.defined() ? std::optional(bias) : std::nullopt;
  return LinearCrossEntropy::apply(hidden, weight, given, labels, range.first, valid, reduction, projection, slice,
                                   soft_cap);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  const auto type = wide_type(logits);
  return at::cross_entropy_loss(logits.to(type), labels, {}, at::Reduction::Sum, kIgnoredLabel);
}

}  // namespace colossal::ops
