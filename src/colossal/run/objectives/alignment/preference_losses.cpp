#include "colossal/run/objectives/alignment/preference_losses.h"

#include <ATen/ATen.h>

#include <limits>

// Steps are also recorded on meta, where clamp() has no gradient, and where(), relu(), log_sigmoid() and logical_and()
// do not run.

namespace colossal::run {
namespace {

/// Returns log(p / (1-p)) for p = exp(x), x <= 0.
at::Tensor log_odds(const at::Tensor& x) {
  const double least =
      x.scalar_type() == at::kDouble ? std::numeric_limits<double>::min() : double{std::numeric_limits<float>::min()};
  const at::Tensor below = x.masked_fill(x > -least, -least);
  return below - at::log(-at::expm1(below));
}

}  // namespace

at::Tensor log_ratios(const at::Tensor& sums, const at::Tensor& reference) { return sums - reference.to(sums); }

// Beyond 37 the difference of softplus(x) and x, exp(-x), is less than the rounding of x in fp64. exp(37) fits fp32.
at::Tensor stable_softplus(const at::Tensor& x) { return at::softplus(x, 1, 37); }

at::Tensor dpo_losses(const at::Tensor& h, const DpoOptions& options) {
  const at::Tensor scaled = options.beta * h;
  const double e = options.smoothing;
  if (options.loss == DpoLoss::Hinge) return (1 - scaled).masked_fill(scaled >= 1, 0);
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

at::Tensor pair_weights(const at::Tensor& counts) {
  const at::Tensor is_there = counts != 0, place = at::arange(counts.size(1), is_there.options().dtype(at::kLong));
  const at::Tensor pairs = is_there.unsqueeze(2)
                               .bitwise_and(is_there.unsqueeze(1))
                               .bitwise_and(place.unsqueeze(1) < place.unsqueeze(0))
                               .to(at::kDouble);
  return pairs / pairs.sum({1, 2}, /*keepdim=*/true).clamp_min(1);
}

at::Tensor reward_losses(const at::Tensor& scores, const at::Tensor& counts, const at::Tensor& margins, double centre) {
  const at::Tensor better = scores.unsqueeze(2), worse = scores.unsqueeze(1);
  at::Tensor losses = stable_softplus(margins.unsqueeze(1).unsqueeze(2) - (better - worse));
  if (centre > 0) losses = losses + centre * (better + worse).square();
  return (pair_weights(counts).to(scores.scalar_type()) * losses).sum({1, 2});
}

at::Tensor kto_losses(const at::Tensor& ratios, const at::Tensor& desirable, const at::Tensor& z,
                      const KtoOptions& options) {
  const at::Tensor better = options.beta * (ratios - z.detach()),
                   is_desirable = (desirable != 0).to(ratios.scalar_type());
  const at::Tensor weights =
      options.undesirable_weight + (options.desirable_weight - options.undesirable_weight) * is_desirable;
  // 1 - s(x) = s(-x), which keeps its digits where s(x) is near 1.
  return weights * at::sigmoid((1 - 2 * is_desirable) * better);
}

}  // namespace colossal::run
