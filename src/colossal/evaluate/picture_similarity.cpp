#include "colossal/evaluate/picture_similarity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::evaluate {
namespace {

constexpr double kLeastError = 1e-10, kDeviation = 1.5, kOfMeans = 0.01 * 0.01, kOfVariances = 0.03 * 0.03;

void check_sizes_equal(const data::Picture& a, const data::Picture& b) {
  require(a.width == b.width && a.height == b.height, "evaluate", "pictures that are compared must have one size: got ",
          a.width, " x ", a.height, " and ", b.width, " x ", b.height);
}

/// Returns the weights of a row of the window, whose sum is 1.
std::array<double, kSimilarityWindow> window_weights() {
  std::array<double, kSimilarityWindow> weights{};
  double sum = 0;
  for (int64_t i = 0; i < kSimilarityWindow; ++i) {
    const double off = static_cast<double>(i - kSimilarityWindow / 2) / kDeviation;
    sum += weights[i] = std::exp(-off * off / 2);
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

/// A channel of a picture, or a product of channels, in [0, 1].
struct Plane {
  int64_t width, height;
  std::vector<double> values;
};

Plane product(const Plane& a, const Plane& b) {
  Plane result = a;
  for (size_t i = 0; i < result.values.size(); ++i) result.values[i] *= b.values[i];
  return result;
}

Plane channel(const data::Picture& picture, size_t index) {
  Plane plane{picture.width, picture.height, {}};
  for (size_t i = index; i < picture.rgb.size(); i += 3) plane.values.push_back(picture.rgb[i] / 255.0);
  return plane;
}

/// Returns the weighted means of all windows inside the plane.
std::vector<double> window_means(const Plane& plane) {
  const std::array<double, kSimilarityWindow> weights = window_weights();
  const int64_t columns = plane.width - kSimilarityWindow + 1, rows = plane.height - kSimilarityWindow + 1;
  std::vector<double> across(columns * plane.height), means(columns * rows);
  for (int64_t y = 0; y < plane.height; ++y)
    for (int64_t x = 0; x < columns; ++x)
      for (int64_t i = 0; i < kSimilarityWindow; ++i)
        across[y * columns + x] += weights[i] * plane.values[y * plane.width + x + i];
  for (int64_t y = 0; y < rows; ++y)
    for (int64_t x = 0; x < columns; ++x)
      for (int64_t i = 0; i < kSimilarityWindow; ++i)
        means[y * columns + x] += weights[i] * across[(y + i) * columns + x];
  return means;
}

/// Returns the mean similarity of the windows of two planes.
double similarity(const Plane& a, const Plane& b) {
  const std::vector<double> mean_a = window_means(a), mean_b = window_means(b), aa = window_means(product(a, a)),
                            bb = window_means(product(b, b)), ab = window_means(product(a, b));
  double sum = 0;
  for (size_t i = 0; i < aa.size(); ++i) {
    const double means = mean_a[i] * mean_b[i], squares = mean_a[i] * mean_a[i] + mean_b[i] * mean_b[i];
    sum += (2 * means + kOfMeans) * (2 * (ab[i] - means) + kOfVariances) /
           ((squares + kOfMeans) * (aa[i] + bb[i] - squares + kOfVariances));
  }
  return sum / static_cast<double>(aa.size());
}

}  // namespace

double peak_signal_to_noise(const data::Picture& a, const data::Picture& b) {
  check_sizes_equal(a, b);
  double sum = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) {
    const double apart = (static_cast<double>(a.rgb[i]) - b.rgb[i]) / 255;
    sum += apart * apart;
  }
  return -10 * std::log10(std::max(kLeastError, sum / static_cast<double>(a.rgb.size())));
}

double structural_similarity(const data::Picture& a, const data::Picture& b) {
  check_sizes_equal(a, b);
  require(a.width >= kSimilarityWindow && a.height >= kSimilarityWindow, "evaluate",
          "pictures must have sides of at least ", kSimilarityWindow, " pixels to be compared: got ", a.width, " x ",
          a.height);
  double sum = 0;
  for (size_t index = 0; index < 3; ++index) sum += similarity(channel(a, index), channel(b, index));
  return sum / 3;
}

}  // namespace colossal::evaluate
