// Quantization methods on single layers: methods that promise it are never worse than rounding to nearest.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/quantization/gptq.h"
#include "colossal/quantization/quantize.h"
#include "colossal/quantization/scales.h"
#include "support/ranks_values.h"
#include "support/thrown_message.h"

namespace colossal::quantization::methods_test {
namespace {

at::Tensor normal(std::vector<int64_t> shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

/// Returns statistics of rows that few directions dominate; some features are much larger than others.
LayerInputs correlated(int64_t features, uint64_t seed) {
  const at::Tensor few = at::matmul(normal({512, 8}, seed), normal({8, features}, seed + 1));
  const at::Tensor sizes = (normal({features}, seed + 2) * 1.5).exp();
  LayerInputs inputs;
  inputs.add((few + 0.1 * normal({512, features}, seed + 3)) * sizes);
  return inputs;
}

std::vector<ops::RoundingOptions> all_roundings() {
  return {{.bits = 8, .group = 32},
          {.bits = 4, .group = 32},
          {.bits = 4, .group = 32, .minima = true},
          {.bits = 4, .group = 128},
          {.bits = 4, .group = 200}};
}

TEST(Gptq, HasSmallerErrorsThanRoundingToNearest) {
  for (uint64_t seed = 1; seed < 5; ++seed)
    for (const ops::RoundingOptions& options : all_roundings()) {
      const LayerInputs inputs = correlated(232, seed);
      const at::Tensor w = normal({48, 232}, seed + 10);
      const double nearest = output_error(w, ops::round_to_codes(w, options).values(), inputs.moments);
      const double passed_on = output_error(w, gptq(w, inputs.moments, options).values(), inputs.moments);
      EXPECT_LT(passed_on, 0.5 * nearest) << options.bits << " " << options.group << " " << options.minima;
    }
}

TEST(Gptq, EqualsRoundingToNearestForIndependentInputs) {
  const at::Tensor w = normal({16, 232}, 3);
  for (const ops::RoundingOptions& options : all_roundings()) {
    const ops::GroupCodes near = ops::round_to_codes(w, options), got = gptq(w, 3 * at::eye(232), options);
    EXPECT_TRUE(test::same_bits(got.values(), near.values())) << options.bits << " " << options.group;
  }
}

TEST(Gptq, SupportsFeaturesThatAreAlwaysZero) {
  LayerInputs inputs;
  at::Tensor x = normal({64, 40}, 1);
  x.slice(1, 10, 20).zero_();
  inputs.add(x);
  const at::Tensor w = normal({8, 40}, 2);
  EXPECT_TRUE(at::isfinite(gptq(w, inputs.moments, {.bits = 4, .group = 8}).values()).all().item<bool>());
  EXPECT_THAT(test::thrown_message([&] { gptq(w, at::eye(39), {}); }), testing::HasSubstr("[in, in]"));
  EXPECT_THAT(test::thrown_message([&] { gptq(w, at::eye(40) / 0.0, {}); }), testing::HasSubstr("must be finite"));
}

TEST(Awq, IsNeverWorseThanRoundingToNearest) {
  for (uint64_t seed = 1; seed < 5; ++seed)
    for (const ops::RoundingOptions& options : all_roundings()) {
      const LayerInputs inputs = correlated(96, seed);
      const at::Tensor w = normal({24, 96}, seed + 10);
      const at::Tensor s = awq_scales({w}, inputs, options);
      const at::Tensor near = ops::round_to_codes((w * s).to(at::kFloat), options).values() / s;
      const double nearest = output_error(w, ops::round_to_codes(w, options).values(), inputs.moments);
      EXPECT_LT(output_error(w, near, inputs.moments), nearest) << options.bits << " " << options.group;
    }
}

TEST(SmoothQuant, BalancesTheLargestValues) {
  const LayerInputs inputs = correlated(16, 1);
  const at::Tensor w = normal({8, 16}, 2);
  const at::Tensor s = smoothing_scales({w}, inputs);
  const at::Tensor of_inputs = inputs.largest / s, of_weights = w.to(at::kDouble).abs().amax(0) * s;
  EXPECT_TRUE(at::allclose(of_inputs, of_weights, 1e-12, 0));
}

TEST(LayerInputs, AccumulatesForAnyBatches) {
  const at::Tensor x = normal({30, 6}, 1);
  LayerInputs once, parts;
  once.add(x);
  for (const at::Tensor& part : x.split(7)) parts.add(part);
  EXPECT_EQ(parts.rows, 30);
  EXPECT_TRUE(at::allclose(parts.moments, once.moments, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(parts.mean, once.mean, 1e-12, 0));
  EXPECT_TRUE(at::equal(parts.largest, once.largest));
}

TEST(Method, RefusesUnknownNames) {
  EXPECT_EQ(method_of("awq"), Method::Awq);
  EXPECT_THAT(test::thrown_message([] { method_of("best"); }), testing::HasSubstr("rtn, gptq, awq, smoothquant"));
}

}  // namespace
}  // namespace colossal::quantization::methods_test
