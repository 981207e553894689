#include "colossal/run/objectives/diffusion/variance_bound.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace colossal::run {
namespace {

// Columns of the factors of a level
enum Factor { kOfPicture, kOfNoised, kPictureOfNoised, kPictureOfNoise, kTrueLogVariance, kLogBeta, kCount };

/// Returns `yes` where the condition holds, else `no`, both finite. LibTorch has no at::where on shapes alone.
at::Tensor chosen(const at::Tensor& condition, const at::Tensor& yes, const at::Tensor& no) {
  const at::Tensor factor = condition.to(yes.scalar_type());
  return factor * yes + (1 - factor) * no;
}

/// Returns the probability that a standard normal number is below x.
at::Tensor normal_below(const at::Tensor& x) { return 0.5 * (1 + at::erf(x / std::numbers::sqrt2)); }

/// Returns the logarithm of the probability of an 8-bit pixel x in [-1, 1] under a normal distribution; the first and
/// last value take all that is beyond them.
at::Tensor pixel_log_likelihood(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& log_variance) {
  const at::Tensor inverse = at::exp(-0.5 * log_variance), distance = x - mean;
  const at::Tensor above = normal_below(inverse * (distance + 1.0 / 255)),
                   below = normal_below(inverse * (distance - 1.0 / 255));
  // At least 1e-12. The gradient of a clamp needs at::where, too; that of a threshold does not.
  const auto log = [](const at::Tensor& p) { return at::log(at::threshold(p - 1e-12, 0, 0) + 1e-12); };
  return chosen(x < -0.999, log(above), chosen(x > 0.999, log(1 - below), log(above - below)));
}

}  // namespace

VarianceBound::VarianceBound(const noise::NoiseOptions& options) {
  const noise::NoiseLevels levels(options);
  std::vector<double> factors;
  for (int64_t t = 0; t < levels.steps(); ++t) {
    const double abar = levels.abar(t), before = t > 0 ? levels.abar(t - 1) : 1, beta = 1 - abar / before;
    // The posterior's own variance is 0 at level 0, where its logarithm is that of level 1.
    const int64_t at = std::min<int64_t>(std::max<int64_t>(t, 1), levels.steps() - 1);
    const double at_before = at > 0 ? levels.abar(at - 1) : 1, at_beta = 1 - levels.abar(at) / at_before;
    const double variance = at_beta * (1 - at_before) / (1 - levels.abar(at));
    factors.insert(factors.end(),
                   {std::sqrt(before) * beta / (1 - abar), std::sqrt(1 - beta) * (1 - before) / (1 - abar),
                    1 / std::sqrt(abar), -std::sqrt(1 / abar - 1), std::log(variance), std::log(beta)});
  }
  factors_ = at::tensor(factors, at::kDouble).view({levels.steps(), kCount});
}

at::Tensor VarianceBound::of_rows(const VarianceInputs& in) const {
  const at::Tensor levels = in.times.to(at::kLong);
  const at::Tensor rows = factors_.to(in.noised.options()).index({levels});
  const auto factor = [&](Factor which) { return rows.select(1, which).view({-1, 1, 1, 1}); };
  const at::Tensor share = (in.variance + 1) / 2;
  const at::Tensor log_variance = share * factor(kLogBeta) + (1 - share) * factor(kTrueLogVariance);
  const at::Tensor picture = factor(kPictureOfNoised) * in.noised + factor(kPictureOfNoise) * in.noise;
  const auto posterior_mean = [&](const at::Tensor& x) {
    return factor(kOfPicture) * x + factor(kOfNoised) * in.noised;
  };
  const at::Tensor mean = posterior_mean(picture), difference = posterior_mean(in.pictures) - mean;
  const at::Tensor true_log = factor(kTrueLogVariance);
  const at::Tensor divergence = 0.5 * (-1 + log_variance - true_log + at::exp(true_log - log_variance) +
                                       difference.square() * at::exp(-log_variance));
  const at::Tensor likelihood = -pixel_log_likelihood(in.pictures, mean, log_variance);
  const at::Tensor is_first = (levels == 0).view({-1, 1, 1, 1});
  return chosen(is_first, likelihood, divergence).mean({1, 2, 3}) / std::numbers::ln2;
}

}  // namespace colossal::run
