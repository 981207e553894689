// Sinusoids of times against values computed with diffusers in fp64, and positions of patches by their formula.
#include "colossal/nn/sinusoids.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/nn/patches.h"
#include "support/thrown_message.h"

namespace colossal::nn::sinusoids_test {
namespace {

using testing::HasSubstr;

constexpr double kNoise = 2e-13;  // of the digits that are given

void expect_values(const at::Tensor& got, const std::vector<double>& want) {
  ASSERT_EQ(got.numel(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got.flatten()[static_cast<int64_t>(i)].item<double>(), want[i], kNoise) << i;
}

at::Tensor time_321() { return at::full({1}, 321.5, at::TensorOptions(at::kDouble)); }

TEST(TimeSinusoids, HaveTheValuesOfDiffusersInEachForm) {
  expect_values(time_sinusoids(time_321(), 8, {.cosines_first = true, .shift = 0}),
                {.4910084637552, .7424517579666, -.9973068904219, .9487625005288, .8711548016976, .669899535074,
                 -.073341436562, .315990059322});
  const std::vector<double> sines{.8711548016976, .7070056608602, .6385793260865, .03214446179233},
      cosines{.4910084637552, -.7072078870542, .7695560046513, .9994832332641};
  std::vector<double> both = sines;
  both.insert(both.end(), cosines.begin(), cosines.end());
  expect_values(time_sinusoids(time_321(), 8, {.shift = 1}), both);
  std::vector<double> turned = cosines;
  turned.insert(turned.end(), sines.begin(), sines.end());
  expect_values(time_sinusoids(time_321(), 8, {.cosines_first = true, .shift = 1}), turned);
}

TEST(TimeSinusoids, HaveFp32AtLeast) {
  EXPECT_EQ(time_sinusoids(at::ones({2}, at::kBFloat16), 4, {}).scalar_type(), at::kFloat);
  EXPECT_EQ(time_sinusoids(at::ones({2}, at::kLong), 4, {}).scalar_type(), at::kFloat);
  EXPECT_EQ(time_sinusoids(time_321(), 4, {}).scalar_type(), at::kDouble);
}

TEST(TimeSinusoids, RefuseOddFeaturesAndWideShifts) {
  EXPECT_THAT(test::thrown_message([] { time_sinusoids(time_321(), 7, {}); }),
              HasSubstr("even number of features: got 7"));
  EXPECT_THAT(test::thrown_message([] { time_sinusoids(time_321(), 2, {.shift = 1}); }), HasSubstr("got 1"));
}

TEST(PicturePositions, HaveTheColumnFirstAndSinesBeforeCosines) {
  const at::Tensor table = picture_positions(2, 3, 8);
  ASSERT_EQ(table.sizes(), at::IntArrayRef({6, 8}));
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t column = 0; column < 3; ++column)
      for (int64_t k = 0; k < 2; ++k) {
        const double w = std::pow(10000, -static_cast<double>(k) / 2);
        const at::Tensor at = table[row * 3 + column];
        EXPECT_NEAR(at[k].item<double>(), std::sin(w * static_cast<double>(column)), 1e-15);
        EXPECT_NEAR(at[2 + k].item<double>(), std::cos(w * static_cast<double>(column)), 1e-15);
        EXPECT_NEAR(at[4 + k].item<double>(), std::sin(w * static_cast<double>(row)), 1e-15);
        EXPECT_NEAR(at[6 + k].item<double>(), std::cos(w * static_cast<double>(row)), 1e-15);
      }
  EXPECT_THAT(test::thrown_message([] { picture_positions(2, 3, 6); }), HasSubstr("divisible by 4"));
}

TEST(Patches, CutRectanglesRowByRow) {
  const PatchShape shape{.channels = 2, .height = 4, .width = 6, .patch = 2, .class_tokens = 0};
  const at::Tensor images = at::arange(48).view({1, 2, 4, 6}), patches = cut_patches(images, shape);
  ASSERT_EQ(patches.sizes(), at::IntArrayRef({1, 6, 8}));
  EXPECT_TRUE(patches[0][4].view({2, 2, 2}).equal(images[0].narrow(1, 2, 2).narrow(2, 2, 2)));  // row 1, column 1
}

TEST(Patches, BecomePicturesWithChannelsInnermost) {
  const PatchShape shape{.channels = 3, .height = 4, .width = 6, .patch = 2, .class_tokens = 0};
  const at::Tensor images = at::arange(72).view({1, 3, 4, 6});
  const at::Tensor outermost = cut_patches(images, shape).view({1, 6, 3, 2, 2});
  EXPECT_TRUE(join_patches(outermost.permute({0, 1, 3, 4, 2}).reshape({1, 6, 12}), shape).equal(images));
  EXPECT_THAT(test::thrown_message([&] { join_patches(at::ones({1, 5, 12}), shape); }),
              HasSubstr("must be [B, 6, 12]"));
}

TEST(PicturePositions, ReadPlacesBetweenIndices) {
  const at::Tensor rows = at::arange(2, at::kDouble) / 4, columns = at::arange(3, at::kDouble) / 4;
  const at::Tensor table = picture_positions(rows, columns, 8);
  EXPECT_EQ(table.sizes(), at::IntArrayRef({6, 8}));
  EXPECT_DOUBLE_EQ(table[5][0].item<double>(), std::sin(0.5)) << "column 2";
  EXPECT_DOUBLE_EQ(table[5][6].item<double>(), std::cos(0.25)) << "row 1";
}

}  // namespace
}  // namespace colossal::nn::sinusoids_test
