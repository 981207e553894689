#include "colossal/nn/sinusoids.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"

namespace colossal::nn {
namespace {

constexpr double kLongest = 10000;  // longest wavelength, divided by 2 pi

/// Returns w_0, w_1, ...: `count` frequencies that fall from 1, as if to 1 / kLongest at the index `end`.
at::Tensor frequencies(int64_t count, double end, at::Device device) {
  const at::Tensor k = at::arange(count, at::TensorOptions(device).dtype(at::kDouble));
  return (k * (-std::log(kLongest) / end)).exp();
}

}  // namespace

at::Tensor time_sinusoids(const at::Tensor& times, int64_t features, const SinusoidOptions& o) {
  const int64_t half = features / 2;
  require(features > 0 && features % 2 == 0, "model", "sinusoids must have an even number of features: got ", features);
  require(static_cast<double>(half) > o.shift, "model", "the shift of sinusoids must be below half of their ", features,
          " features: got ", o.shift);
  const at::ScalarType type = at::promote_types(times.scalar_type(), at::kFloat);
  const at::Tensor w = frequencies(half, static_cast<double>(half) - o.shift, times.device()).to(type);
  const at::Tensor angles = times.to(type).unsqueeze(-1) * w;
  return o.cosines_first ? at::cat({angles.cos(), angles.sin()}, -1) : at::cat({angles.sin(), angles.cos()}, -1);
}

at::Tensor picture_positions(int64_t rows, int64_t columns, int64_t features) {
  const auto indices = [](int64_t count) { return at::arange(count, at::TensorOptions(at::kDouble)); };
  return picture_positions(indices(rows), indices(columns), features);
}

at::Tensor picture_positions(const at::Tensor& rows, const at::Tensor& columns, int64_t features) {
  require(features > 0 && features % 4 == 0, "model",
          "the features of positions in a picture must be divisible by 4: ", "got ", features);
  const auto of = [&](const at::Tensor& places) { return time_sinusoids(places.to(at::kDouble), features / 2, {}); };
  const at::Tensor of_column = of(columns).unsqueeze(0).expand({rows.size(0), -1, -1}),
                   of_row = of(rows).unsqueeze(1).expand({-1, columns.size(0), -1});
  return at::cat({of_column, of_row}, -1).flatten(0, 1);
}

}  // namespace colossal::nn
