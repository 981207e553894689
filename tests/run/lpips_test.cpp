// LPIPS: against a plain second implementation, gradients by finite differences, sizes, and files that do not fit.
#include "colossal/run/objectives/reconstruction/lpips.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/tensor/flops.h"
#include "support/plain_lpips.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::lpips_test {
namespace {

using testing::HasSubstr;

at::Tensor waves(double a, double b, const std::vector<int64_t>& sizes) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) * a + b).sin().view(sizes);
}

at::Tensor pixels(const at::Tensor& pictures) { return pictures.flatten(2).transpose(1, 2); }

class PerceptualDistance : public testing::Test {
 protected:
  void SetUp() override { test::write_lpips(folder(), weights_); }
  std::string folder() const { return folder_ / "lpips"; }
  /// Returns the message that refuses the weights.
  std::string refusal(const test::NamedTensors& weights) const {
    test::write_lpips(folder(), weights);
    return test::thrown_message([&] { Lpips(folder()).check(); });
  }
  test::TemporaryFolder folder_;
  test::NamedTensors weights_ = test::made_lpips();
};

TEST_F(PerceptualDistance, EqualsItsPlainForm) {
  const Lpips lpips(folder());
  lpips.check();
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{{16, 16}, {35, 18}}) {
    const at::Tensor x = waves(.3, .1, {2, 3, height, width}).requires_grad_(), y = waves(.7, .2, x.sizes().vec());
    const at::Tensor again = x.detach().clone().requires_grad_();
    const at::Tensor found = lpips.distance(pixels(x), pixels(y), {height, width}),
                     wanted = test::plain_lpips(weights_, again, y);
    ASSERT_EQ(found.sizes(), at::IntArrayRef({2}));
    EXPECT_GT(found.min().item<double>(), 1e-3);
    EXPECT_TRUE(at::allclose(found, wanted, 1e-12, 0)) << found << wanted;
    found.sum().backward();
    wanted.sum().backward();
    EXPECT_GT(x.grad().abs().max().item<double>(), 1e-4);
    EXPECT_TRUE(at::allclose(x.grad(), again.grad(), 1e-9, 1e-12));
  }
}

TEST_F(PerceptualDistance, HasTheGradientOfFiniteDifferences) {
  const Lpips lpips(folder());
  at::Tensor x = waves(.3, .1, {1, 256, 3});
  const at::Tensor y = waves(.7, .2, {1, 256, 3});
  const auto distance = [&] { return lpips.distance(x, y, {16, 16}).item<double>(); };
  at::Tensor leaf = x.clone().requires_grad_();
  lpips.distance(leaf, y, {16, 16}).sum().backward();
  for (const int64_t i : {0, 100, 399, 767}) {
    const at::Tensor element = x.view({-1})[i];
    const double old = element.item<double>(), h = 1e-6;
    element.fill_(old + h);
    const double above = distance();
    element.fill_(old - h);
    const double below = distance();
    element.fill_(old);
    EXPECT_NEAR(leaf.grad().view({-1})[i].item<double>(), (above - below) / (2 * h), 1e-7) << i;
  }
}

TEST_F(PerceptualDistance, HasFiniteGradientsWithoutFeatures) {
  for (auto& [name, value] : weights_)
    if (name.ends_with("bias")) value.fill_(-100);
  test::write_lpips(folder(), weights_);
  const at::Tensor x = waves(.3, .1, {1, 256, 3}).requires_grad_();
  const at::Tensor distance = Lpips(folder()).distance(x, waves(.7, .2, {1, 256, 3}), {16, 16});
  EXPECT_EQ(distance.item<double>(), 0);
  distance.sum().backward();
  EXPECT_TRUE(at::isfinite(x.grad()).all().item<bool>());
}

TEST_F(PerceptualDistance, HasTheSizesOfVggWithoutAFolder) {
  const at::Tensor x = at::empty({1, 256, 3}, at::TensorOptions(at::kMeta).dtype(at::kFloat)).requires_grad_();
  const tensor::FlopCount count;
  const at::Tensor distance = Lpips(folder_ / "nothing").distance(x, x.detach(), {16, 16});
  EXPECT_EQ(distance.sizes(), at::IntArrayRef({1}));
  double products = 0;  // of pixels, inputs and outputs
  const double sides[] = {16, 8, 4, 2, 1}, features[] = {64, 128, 256, 512, 512};
  double in = 3;
  for (int level = 0; level < 5; ++level)
    for (int i = 0; i < (level < 2 ? 2 : 3); ++i, in = features[level])
      products += sides[level] * sides[level] * 9 * in * features[level];
  EXPECT_EQ(count.total(), 2 * 2 * products);
  distance.sum().backward();
  EXPECT_EQ(count.total(), 3 * 2 * products) << "weights have no gradients";
}

TEST_F(PerceptualDistance, ReadsTorchvisionsNetworkAndHalfPrecision) {
  test::NamedTensors weights = weights_;
  for (const char* name : {"classifier.0.weight", "classifier.0.bias", "classifier.6.bias"})
    weights[name] = waves(1, 0, {2});
  for (auto& [name, value] : weights) value = value.to(at::kHalf);
  EXPECT_EQ(refusal(weights), "");
}

TEST_F(PerceptualDistance, RefusesFilesThatDoNotFit) {
  test::NamedTensors weights = weights_;
  weights.erase("features.10.bias");
  weights["lin2.model.1.weight"] = waves(1, 0, {1, 9, 1, 1});
  weights["features.30.weight"] = waves(1, 0, {2});
  weights["features.5.weight"] = waves(1, 0, {5, 4, 1, 1});
  const std::string message = refusal(weights);
  for (const char* part : {"does not hold the VGG16", "features.10.bias", "lin2.model.1.weight", "[1, 9, 1, 1]",
                           "features.30.weight", "features.5.weight"})
    EXPECT_THAT(message, HasSubstr(part));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 5) << "a row for each: " << message;
  test::write_lpips(folder(), weights_);
  checkpoint::write_safetensors(folder() + "/more.safetensors", {{"features.0.bias", waves(1, 0, {4})}});
  EXPECT_THAT(test::thrown_message([&] { Lpips(folder()).check(); }), HasSubstr("got features.0.bias in "));
  EXPECT_THAT(test::thrown_message([&] { Lpips(folder_ / "nothing").check(); }), HasSubstr("which has none"));
}

TEST_F(PerceptualDistance, RefusesSmallPictures) {
  EXPECT_THAT(test::thrown_message(
                  [&] { Lpips(folder()).distance(waves(1, 0, {1, 240, 3}), waves(1, 0, {1, 240, 3}), {16, 15}); }),
              HasSubstr("at least 16 x 16 pixels"));
}

}  // namespace
}  // namespace colossal::run::lpips_test
