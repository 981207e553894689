#include "colossal/ops/adamw.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr int64_t kGrain = 16384;

void check(const at::Tensor& param, const at::Tensor& grad, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
           const AdamWStep& step, const at::Tensor& copy) {
  require(step.step >= 1, "adamw", "steps are counted from 1: got ", step.step);
  const auto fits = [&](const at::Tensor& t) { return t.dim() == 1 && t.is_contiguous() && t.numel() == param.numel(); };
  require(fits(param) && fits(grad) && fits(exp_avg) && fits(exp_avg_sq) && (!copy.defined() || fits(copy)), "adamw",
          "buffers must be contiguous, 1-D and equally long: got param ", param.sizes(), ", grad ", grad.sizes(),
          ", exp_avg ", exp_avg.sizes(), ", exp_avg_sq ", exp_avg_sq.sizes());
  const auto type = param.scalar_type(), gradient = grad.scalar_type();
  require(exp_avg.scalar_type() == type && exp_avg_sq.scalar_type() == type &&
              (gradient == type || (gradient == at::kBFloat16 && type == at::kFloat)),
          "adamw", "param, exp_avg and exp_avg_sq must share a dtype and grad have it too (or bf16 beside fp32): got ", type,
          ", ", exp_avg.scalar_type(), ", ", exp_avg_sq.scalar_type(), " and ", gradient);
  require(!copy.defined() || (copy.scalar_type() == at::kBFloat16 && type != at::kDouble), "adamw",
          "the rounded copy must be bf16 beside fp32 or bf16 parameters");
}

struct Corrections {
  double first, second;
  explicit Corrections(const AdamWStep& step)
      : first(1 - std::pow(step.beta1, static_cast<double>(step.step))),
        second(1 - std::pow(step.beta2, static_cast<double>(step.step))) {}
};

}  // namespace

void adamw_reference_(at::Tensor& param, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                      const AdamWStep& step, const at::Tensor& copy) {
  check(param, grad, exp_avg, exp_avg_sq, step, copy);
  at::NoGradGuard no_grad;
  const auto type = wide_type(param);
  const Corrections correction(step);
  const auto g = grad.to(type) * step.gradient_scale;
  const auto m = exp_avg.to(type).lerp(g, 1 - step.beta1);
  const auto v = exp_avg_sq.to(type) * step.beta2 + g * g * (1 - step.beta2);
  const auto denominator = v.sqrt() / std::sqrt(correction.second) + step.epsilon;
  const auto decayed = param.to(type) * (1 - step.learning_rate * step.weight_decay);
  const auto stepped = decayed - m / denominator * (step.learning_rate / correction.first);
  param.copy_(stepped);
  exp_avg.copy_(m);
  exp_avg_sq.copy_(v);
  if (copy.defined()) at::Tensor(copy).copy_(stepped);
}

void adamw_(at::Tensor& param, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, const AdamWStep& step,
            const at::Tensor& copy) {
  if (!has_kernel(param)) return adamw_reference_(param, grad, exp_avg, exp_avg_sq, step, copy);
  check(param, grad, exp_avg, exp_avg_sq, step, copy);
  const Corrections correction(step);
  with_element_type(param, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    const auto& kernel = kernels<T>();
    const AdamWFactors<W> factors{static_cast<W>(step.gradient_scale),
                                  static_cast<W>(1 - step.learning_rate * step.weight_decay),
                                  static_cast<W>(1 - step.beta1),
                                  static_cast<W>(step.beta2),
                                  static_cast<W>(1 - step.beta2),
                                  static_cast<W>(1 / std::sqrt(correction.second)),
                                  static_cast<W>(step.epsilon),
                                  static_cast<W>(step.learning_rate / correction.first)};
    const bool narrow = grad.scalar_type() == at::kBFloat16;
    parallel_for(0, param.numel(), kGrain, [&](int64_t from, int64_t to) {
      const AdamWBuffers<T> part{pointer<T>(param) + from, pointer<T>(exp_avg) + from, pointer<T>(exp_avg_sq) + from,
                                 copy.defined() ? pointer<Bf16>(copy) + from : nullptr};
      if (narrow)
        kernel.adamw_bf16_grad(part, pointer<Bf16>(grad) + from, factors, to - from);
      else
        kernel.adamw(part, pointer<T>(grad) + from, factors, to - from);
    });
  });
  for (auto* changed : {&param, &exp_avg, &exp_avg_sq}) changed->unsafeGetTensorImpl()->bump_version();
}

}  // namespace colossal::ops
