#include "colossal/run/objectives/alignment/preference_losses.h"

#include <ATen/ATen.h>

#include <limits>

namespace colossal::run {
namespace {

/// Returns log(p / (1-p)) for p = exp(x), x <= 0.
at::Tensor log_odds(const at::Tensor& x) {
  const double least =
      x.scalar_type() == at::kDouble ? std::numeric_limits<double>::min() : double{std::numeric_limits<float>::min()};
  const at::Tensor below = x.clamp_max(-least);
  return below - at::log(-at::expm1(below));
}

}  // namespace

at::Tensor stable_softplus(const at::Tensor& x) { return -at::log_sigmoid(-x); }

at::Tensor dpo_losses(const at::Tensor& h, const DpoOptions& options) {
  const at::Tensor scaled = options.beta * h;
  const double e = options.smoothing;
  if (options.loss == DpoLoss::Hinge) return (1 - scaled).clamp_min(0);
  if (e == 0) return stable_softplus(-scaled);
  const at::Tensor right = (1 - e) * stable_softplus(-scaled), wrong = e * stable_softplus(scaled);
  return options.loss == DpoLoss::Robust ? (right - wrong) / (1 - 2 * e) : right + wrong;
}

at::Tensor ipo_losses(const at::Tensor& h, double beta) { return (h - 1 / (2 * beta)).square(); }

at::Tensor simpo_losses(const at::Tensor& chosen, const at::Tensor& rejected, double beta, double margin) {
  return stable_softplus(margin - beta * (chosen - rejected));
}

at::Tensor log_odds_ratios(const at::Tensor& chosen, const at::Tensor& rejected) {
  return log_odds(chosen) - log_odds(rejected);
}

at::Tensor kto_losses(const at::Tensor& ratios, const at::Tensor& desirable, const at::Tensor& z,
                      const KtoOptions& options) {
  const at::Tensor better = options.beta * (ratios - z.detach());
  // 1 - s(x) = s(-x), which keeps its digits where s(x) is near 1.
  return at::where(desirable != 0, options.desirable_weight * at::sigmoid(-better),
                   options.undesirable_weight * at::sigmoid(better));
}

}  // namespace colossal::run
