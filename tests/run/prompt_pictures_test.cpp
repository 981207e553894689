// Pictures as an encoder reads them, against CLIPImageProcessor of transformers 5.23; what is stored of them; rows
// without their image prompt.
#include "colossal/run/objectives/diffusion/prompt_pictures.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/data/pictures/picture.h"
#include "colossal/models/conditions.h"
#include "colossal/models/image_encoder.h"
#include "colossal/run/objectives/diffusion/noised_samples.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::prompt_pictures_test {
namespace {

data::Picture picture(int64_t width, int64_t height) {
  data::Picture made{width, height, {}};
  for (int64_t i = 0; i < 3 * width * height; ++i) made.rgb.push_back(static_cast<uint8_t>(i * i % 251));
  return made;
}

/// Returns what an encoder of 16 pixels reads as numbers from 0 to 255.
at::Tensor bytes_of(const data::Picture& picture) {
  const auto of_channels = [](const double* values) {
    return at::tensor(at::ArrayRef<double>(values, 3), at::kDouble).view({3, 1, 1});
  };
  return (pixels_to_encode(picture, 16) * of_channels(models::kPixelDeviations) + of_channels(models::kPixelMeans)) *
         255;
}

// Pillow's weights have 22 bits, so single pixels may round to a neighbour.
TEST(PromptPictures, EqualThoseOfTransformers) {
  const at::Tensor wide = bytes_of(picture(45, 37)), high = bytes_of(picture(10, 23));
  ASSERT_EQ(wide.sizes(), at::IntArrayRef({3, 16, 16}));
  EXPECT_NEAR(wide.sum().item<double>(), 90686, 3);
  EXPECT_NEAR(high.sum().item<double>(), 88880, 3);
  const auto expect_pixel = [](const at::Tensor& found, int64_t y, int64_t x, const std::vector<double>& wanted) {
    for (int64_t c = 0; c < 3; ++c) EXPECT_NEAR(found[c][y][x].item<double>(), wanted[c], 1.01) << y << " " << x;
  };
  expect_pixel(wide, 0, 0, {94, 114, 139});
  expect_pixel(wide, 7, 9, {119, 116, 113});
  expect_pixel(wide, 15, 15, {109, 84, 160});
  expect_pixel(high, 0, 0, {31, 113, 231});
  expect_pixel(high, 7, 9, {83, 176, 127});
  expect_pixel(high, 15, 15, {32, 41, 41});
  const std::string png = data::encode_png(picture(45, 37));
  EXPECT_TRUE(at::equal(pixels_to_encode(png, "wide.png", 16), pixels_to_encode(picture(45, 37), 16)));
}

TEST(PromptPictures, DependOnPictureAndEncoder) {
  const std::string one = key_of_image_encoder({"clip-vision-tiny", 1}),
                    other = key_of_image_encoder({"clip-vision-tiny", 2});
  EXPECT_EQ(one, "clip-vision-tiny-1");
  EXPECT_NE(prompt_id({.content = "a"}, one), prompt_id({.content = "a"}, other));
  EXPECT_NE(prompt_id({.content = "a"}, one), prompt_id({.content = "b"}, one));
}

TEST(PromptPictures, ShowTheFirstPictureThatARunDidNotLeaveOut) {
  const test::TemporaryFolder folder;
  const std::string whole = data::encode_png(picture(45, 37));
  std::string damaged = whole;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0xff);
  folder.write("a.png", damaged);
  folder.write("b.png", whole);
  for (const char* name : {"a.txt", "b.txt"}) folder.write(name, "a caption");
  const DrawnDataKeys keys{.size = {16, 16}};
  const PipelineSource source{.sizes = {.channels = 4, .height = 8, .width = 8, .text = 3}, .factor = 2};
  Config config;
  config.data.path = folder.path();
  config.data.on_error = "skip";
  EXPECT_EQ(first_picture(config, keys, source), whole);
  config.data.on_error = "refuse";
  EXPECT_THAT(test::thrown_message([&] { first_picture(config, keys, source); }), testing::HasSubstr("a.png"));
}

// 5 % of the rows are without the picture, 5 % without the caption and 5 % without both, as in 2308.06721.
TEST(PromptPictures, DropWithAndWithoutTheCaption) {
  const auto text = [](double value) {
    tensor::Batch batch;
    batch.add(kText,
              {at::full({1, 2, 3}, value, at::kFloat), {tensor::Dim::Row, tensor::Dim::Other, tensor::Dim::Feature}});
    return batch;
  };
  Told told{.caption = text(1), .empty = text(0)};
  told.conditions.add(models::kImageEmbedding, models::condition_field(at::ones({1, 4}, at::kFloat)));
  const auto shares = [&](bool is_held_out) {  // with both, without the picture, without the caption, without both
    NoisedOptions options{.keys = completed({}, {.target = "epsilon", .schedule = "linear", .guidance = 7}),
                          .channels = 1,
                          .height = 2,
                          .width = 2,
                          .text = 3};
    options.tokens = 2;
    options.conditions = {{.name = models::kImageEmbedding, .sizes = {4}}};
    options.is_held_out = is_held_out;
    const Noiser noiser(options);
    tensor::Batch batch = noised_batch(1, options);
    constexpr int kRows = 2000;
    std::vector<double> found(4);
    for (int i = 0; i < kRows; ++i) {
      noiser.fill(at::zeros({1, 2, 2}), told, i, noiser.seed_of(i, static_cast<uint64_t>(i)), batch, 0);
      const bool has_text = batch.at(kText).sum().item<double>() > 0,
                 has_image = batch.at(models::kImageEmbedding).sum().item<double>() > 0;
      found[(has_text ? 0 : 2) + (has_image ? 0 : 1)] += 1.0 / kRows;
    }
    return found;
  };
  using testing::DoubleNear;
  EXPECT_THAT(shares(false), testing::ElementsAre(DoubleNear(0.85, 0.03), DoubleNear(0.05, 0.015),
                                                  DoubleNear(0.05, 0.015), DoubleNear(0.05, 0.015)));
  EXPECT_NEAR(shares(true).front(), 1, 1e-9) << "held out";
}

}  // namespace
}  // namespace colossal::run::prompt_pictures_test
