// The comparison of an approximate drawing with an exact one. A function that fills pictures stands for the drawer.
#include "colossal/cli/approximate_drawing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "colossal/data/pictures/picture.h"

namespace colossal::cli::approximate_drawing_test {
namespace {

using diffusion::DrawnPicture;
using diffusion::DrawOptions;

/// Draws gray pictures, which are 10 of 255 steps brighter if they are approximate.
struct FakeDrawer {
  std::vector<DrawOptions> calls{};
  std::vector<int64_t> latents{};  // rows given to each call

  DrawAll draw() {
    return [this](const DrawOptions& options, const diffusion::GivenPictures& given, const TakeDrawn& take) {
      calls.push_back(options);
      latents.push_back(given.latents.defined() ? given.latents.size(0) : 0);
      const auto gray = static_cast<uint8_t>(options.approximate.empty() ? 100 : 110);
      for (int64_t i = 0; i < options.count; ++i)
        take({.png = data::encode_png({.width = 2, .height = 1, .rgb = std::vector<uint8_t>(6, gray)}),
              .seed = options.seed + i});
    };
  }
};

std::vector<DrawnPicture> drawn(FakeDrawer& drawer, const DrawOptions& options) {
  std::vector<DrawnPicture> pictures;
  draw_beside_exact(options, {.latents = at::zeros({options.count, 3, 8, 8})}, drawer.draw(),
                    [&](const DrawnPicture& one) { pictures.push_back(one); });
  return pictures;
}

TEST(ApproximateDrawing, ComparesTheFirstPictureWithItsExactDrawing) {
  FakeDrawer drawer;
  const std::vector<DrawnPicture> pictures =
      drawn(drawer, {.prompt = "rain", .count = 3, .seed = 5, .approximate = "pab"});
  ASSERT_EQ(pictures.size(), 3u);
  ASSERT_TRUE(pictures[0].psnr.has_value());
  EXPECT_NEAR(*pictures[0].psnr, 20 * std::log10(255. / 10), 1e-9);
  EXPECT_EQ(comparison_line(pictures[0]), "psnr 28.13 dB to the exact drawing");
  EXPECT_FALSE(pictures[1].psnr.has_value());
  EXPECT_EQ(comparison_line(pictures[1]), "");
  EXPECT_EQ(pictures[2].seed, 7);
  ASSERT_EQ(drawer.calls.size(), 2u);
  EXPECT_EQ(drawer.calls[0].approximate, "");
  EXPECT_EQ(drawer.calls[0].count, 1);
  EXPECT_EQ(drawer.calls[0].seed, 5);
  EXPECT_EQ(drawer.calls[1].approximate, "pab");
  EXPECT_EQ(drawer.latents, (std::vector<int64_t>{1, 3}));
}

TEST(ApproximateDrawing, ComparesAClipAsOnePicture) {
  const auto draw = [](const DrawOptions& options, const diffusion::GivenPictures&, const TakeDrawn& take) {
    for (int64_t frame = 0; frame < 2; ++frame) {  // the first one is given, and stays as it is
      const auto gray = static_cast<uint8_t>(options.approximate.empty() || frame == 0 ? 100 : 110);
      take({.pixels = {.width = 2, .height = 1, .rgb = std::vector<uint8_t>(6, gray)}, .frame = frame, .frames = 2});
    }
  };
  std::vector<DrawnPicture> frames;
  draw_beside_exact({.prompt = "rain", .approximate = "pab"}, {}, draw,
                    [&](const DrawnPicture& one) { frames.push_back(one); });
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_FALSE(frames[0].psnr.has_value());
  EXPECT_NEAR(frames[1].psnr.value_or(0), 10 * std::log10(2 * 255. * 255. / 100), 1e-6);
}

TEST(ApproximateDrawing, DrawsOnceIfNothingIsApproximate) {
  FakeDrawer drawer;
  const std::vector<DrawnPicture> pictures = drawn(drawer, {.prompt = "rain", .count = 2});
  EXPECT_EQ(drawer.calls.size(), 1u);
  ASSERT_EQ(pictures.size(), 2u);
  EXPECT_FALSE(pictures[0].psnr.has_value());
}

}  // namespace
}  // namespace colossal::cli::approximate_drawing_test
