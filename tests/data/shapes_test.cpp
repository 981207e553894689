// Drawn shapes: what follows from the seed, that classes differ in form alone, how they move, and samples of them.
#include "colossal/data/pictures/shapes.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>
#include <limits>
#include <map>
#include <optional>

#include "colossal/base/json.h"
#include "colossal/data/batches.h"
#include "colossal/data/pictures/shape_samples.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::data::shapes_test {
namespace {

using testing::HasSubstr;

std::array<int, 3> pixel(const Picture& picture, int64_t x, int64_t y) {
  const uint8_t* at = &picture.rgb[(y * picture.width + x) * 3];
  return {at[0], at[1], at[2]};
}

Picture mirror(const Picture& from) {
  Picture to = from;
  for (int64_t y = 0; y < from.height; ++y)
    for (int64_t x = 0; x < from.width; ++x)
      std::copy_n(&from.rgb[(y * from.width + from.width - 1 - x) * 3], 3, &to.rgb[(y * from.width + x) * 3]);
  return to;
}

/// The contents of a picture, found from its pixels: the darkest pixel is ground, and the brightest the shape.
struct Seen {
  std::array<int, 3> ground{}, colour{};
  int64_t left = 0, top = 0, right = 0, bottom = 0;  // the box of the pixels that are not ground; the ends are outside
  std::vector<double> mask{};                        // for each pixel, the share of the shape
};

Seen look_at(const Picture& picture) {
  const auto sum = [](const std::array<int, 3>& p) { return p[0] + p[1] + p[2]; };
  Seen seen{.ground = {255, 255, 255}, .left = picture.width, .top = picture.height};
  for (int64_t i = 0; i < picture.width * picture.height; ++i) {
    const auto p = pixel(picture, i, 0);
    if (sum(p) < sum(seen.ground)) seen.ground = p;
    if (sum(p) > sum(seen.colour)) seen.colour = p;
  }
  for (int64_t y = 0; y < picture.height; ++y)
    for (int64_t x = 0; x < picture.width; ++x) {
      const auto p = pixel(picture, x, y);
      seen.mask.push_back(static_cast<double>(sum(p) - sum(seen.ground)) / (sum(seen.colour) - sum(seen.ground)));
      if (p == seen.ground) continue;
      seen.left = std::min(seen.left, x), seen.right = std::max(seen.right, x + 1);
      seen.top = std::min(seen.top, y), seen.bottom = std::max(seen.bottom, y + 1);
    }
  return seen;
}

/// Returns the share of the shape around a point of its box, (0, 0) to (1, 1).
double share_at(const Picture& picture, const Seen& seen, double x, double y) {
  const auto column = seen.left + static_cast<int64_t>(x * static_cast<double>(seen.right - seen.left)),
             row = seen.top + static_cast<int64_t>(y * static_cast<double>(seen.bottom - seen.top));
  return seen.mask[row * picture.width + column];
}

/// Returns the number of the model that is most like this picture within the box of its shape.
int64_t most_similar(const Picture& picture, const std::vector<Picture>& models) {
  constexpr int kPoints = 16;
  const Seen seen = look_at(picture);
  std::pair<double, int64_t> best{std::numeric_limits<double>::max(), -1};
  for (int64_t shape = 0; shape < kShapes; ++shape) {
    const Picture& model = models[shape];
    const Seen of_model = look_at(model);
    double difference = 0;
    for (int i = 0; i < kPoints * kPoints; ++i) {
      const double x = (i % kPoints + 0.5) / kPoints, y = (i / kPoints + 0.5) / kPoints;
      difference += std::abs(share_at(picture, seen, x, y) - share_at(model, of_model, x, y));
    }
    best = std::min(best, {difference, shape});
  }
  return best.second;
}

TEST(Shapes, FollowFromShapeAndSeedAlone) {
  EXPECT_EQ(draw_shape(6, 5, 32, 24).rgb, draw_shape(6, 5, 32, 24).rgb);
  EXPECT_NE(draw_shape(6, 5, 32, 24).rgb, draw_shape(6, 6, 32, 24).rgb);
  EXPECT_NE(draw_shape(6, 5, 32, 24).rgb, draw_shape(7, 5, 32, 24).rgb);
}

// Pixels of a fixed seed: a change of the drawing changes what runs of earlier versions trained on.
TEST(Shapes, KeepTheirColoursBetweenVersions) {
  const Seen star = look_at(draw_shape(6, 42, 33, 33));
  EXPECT_THAT(star.ground, testing::ElementsAre(120, 127, 91));
  EXPECT_THAT(star.colour, testing::ElementsAre(249, 226, 220));
}

TEST(Shapes, SpanSixToNineTenthsAndOutshineTheirGround) {
  double smallest = 1, largest = 0;
  for (uint64_t seed = 0; seed < 40; ++seed)
    for (const auto& [width, height] : {std::pair<int64_t, int64_t>{64, 64}, {64, 97}, {120, 64}}) {
      const Seen seen = look_at(draw_shape(static_cast<int64_t>(seed) % kShapes, seed, width, height));
      for (size_t c = 0; c < 3; ++c) EXPECT_GE(seen.colour[c], seen.ground[c] + 50) << seed;
      for (const int64_t span : {seen.right - seen.left, seen.bottom - seen.top}) {
        EXPECT_GE(span, 0.6 * 64 - 1) << seed;  // a quarter of a pixel at an edge may be missed
        EXPECT_LE(span, 0.9 * 64 + 2) << seed;  // a pixel counts if it is touched
        smallest = std::min(smallest, static_cast<double>(span) / 64);
        largest = std::max(largest, static_cast<double>(span) / 64);
      }
    }
  EXPECT_LT(smallest, 0.65);
  EXPECT_GT(largest, 0.85);
}

// With one seed all shapes have the same colours and the same box, so neither shows the class.
TEST(Shapes, DifferInFormAlone) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Seen square = look_at(draw_shape(2, seed, 96, 80));
    for (int64_t shape = 0; shape < kShapes; ++shape) {
      const Seen seen = look_at(draw_shape(shape, seed, 96, 80));
      EXPECT_EQ(seen.ground, square.ground) << shape;
      EXPECT_EQ(seen.colour, square.colour) << shape;
      EXPECT_NEAR(seen.left, square.left, 1) << shape;
      EXPECT_NEAR(seen.top, square.top, 1) << shape;
      EXPECT_NEAR(seen.right, square.right, 1) << shape;
      EXPECT_NEAR(seen.bottom, square.bottom, 1) << shape;
    }
  }
}

TEST(Shapes, KeepTheirClassWhenMirrored) {
  std::vector<Picture> models;
  for (int64_t shape = 0; shape < kShapes; ++shape) models.push_back(draw_shape(shape, 1234, 48, 48));
  for (uint64_t seed = 0; seed < 4; ++seed)
    for (int64_t shape = 0; shape < kShapes; ++shape) {
      const Picture picture = draw_shape(shape, seed, 48, 48);
      EXPECT_EQ(most_similar(picture, models), shape);
      EXPECT_EQ(most_similar(mirror(picture), models), shape);
    }
}

TEST(Shapes, ShowTheSameAtAnySize) {
  for (int64_t shape = 0; shape < kShapes; ++shape) {
    const Picture large = draw_shape(shape, 3, 128, 96), small = draw_shape(shape, 3, 32, 24);
    const Picture reduced = resample(large, {0, 0, 128, 96}, 32, 24);
    double difference = 0;
    for (size_t i = 0; i < small.rgb.size(); ++i) difference += std::abs(small.rgb[i] - reduced.rgb[i]);
    EXPECT_LT(difference / static_cast<double>(small.rgb.size()), 5) << shape;
  }
}

TEST(Shapes, HaveAnySize) {
  for (int64_t side = 1; side <= 65; ++side)
    for (const auto& [width, height] : {std::pair{side, side}, {side, int64_t{7}}, {int64_t{3}, side}}) {
      const Picture picture = draw_shape(side % kShapes, 9, width, height);
      EXPECT_EQ(picture.width, width);
      EXPECT_EQ(picture.height, height);
      EXPECT_EQ(static_cast<int64_t>(picture.rgb.size()), width * height * 3);
    }
  EXPECT_THAT(test::thrown_message([] { draw_shape(0, 0, 0, 4); }), HasSubstr("got 0 x 4"));
  EXPECT_THAT(test::thrown_message([] { draw_shape(0, 0, 65'536, 1); }), HasSubstr("got 65536 x 1"));
  EXPECT_THAT(test::thrown_message([] { draw_shape(0, 0, 60'000, 60'000); }), HasSubstr("67108864 in all"));
  EXPECT_THAT(test::thrown_message([] { draw_shape(10, 0, 4, 4); }), HasSubstr("a drawn shape must be 0 to 9: got 10"));
}

TEST(Shapes, HaveNamesAndCaptions) {
  EXPECT_THAT(shape_names(), testing::ElementsAre("circle", "ring", "square", "triangle", "diamond", "cross", "star",
                                                  "heart", "hourglass", "bars"));
  EXPECT_EQ(shape_caption(0), "a circle");
  EXPECT_EQ(shape_caption(9), "two bars");
}

TEST(MovingShapes, BeginWithThePicture) {
  for (uint64_t seed = 0; seed < 40; ++seed)
    for (const auto& [width, height] : {std::pair<int64_t, int64_t>{32, 32}, {17, 29}, {1, 1}}) {
      const int64_t shape = static_cast<int64_t>(seed) % kShapes;
      EXPECT_EQ(draw_moving_shape(shape, seed, width, height, 0).rgb, draw_shape(shape, seed, width, height).rgb);
    }
}

/// Returns the middle of the shape in a frame, or nothing if the shape is not wholly in sight.
std::optional<std::array<double, 2>> middle_of(const Picture& frame) {
  const Seen seen = look_at(frame);
  if (seen.left == 0 || seen.top == 0 || seen.right == frame.width || seen.bottom == frame.height) return std::nullopt;
  double sum = 0, x = 0, y = 0;
  for (int64_t i = 0; i < frame.width * frame.height; ++i) {
    sum += seen.mask[i];
    x += seen.mask[i] * static_cast<double>(i % frame.width);
    y += seen.mask[i] * static_cast<double>(i / frame.width);
  }
  return std::array{x / sum, y / sum};
}

TEST(MovingShapes, MoveAsTheirCaptionSaysAtASteadySpeed) {
  std::map<std::string, int> seen_ways;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::string caption = moving_shape_caption(0, seed), way = caption.substr(caption.rfind(' ') + 1);
    const double right = way == "right" ? 1 : way == "left" ? -1 : 0, down = way == "down" ? 1 : way == "up" ? -1 : 0;
    ASSERT_EQ(std::abs(right) + std::abs(down), 1) << caption;
    std::optional<double> speed;
    for (int64_t frame = 0; frame < 16; ++frame) {
      const auto from = middle_of(draw_moving_shape(0, seed, 60, 30, frame)),
                 to = middle_of(draw_moving_shape(0, seed, 60, 30, frame + 1));
      if (!from || !to) continue;
      const double x = (*to)[0] - (*from)[0], y = (*to)[1] - (*from)[1], along = right * x / 60 + down * y / 30;
      EXPECT_NEAR(right != 0 ? y : x, 0, 0.2) << caption;
      EXPECT_GT(along, 1.0 / 16 - 0.006) << caption;
      EXPECT_LT(along, 1.0 / 8 + 0.006) << caption;
      EXPECT_NEAR(along, speed.value_or(along), 0.012) << caption << " in frame " << frame;
      speed = along;
      ++seen_ways[way];
    }
  }
  EXPECT_THAT(seen_ways, testing::SizeIs(4));
}

// A square fills its box, so the box of what is in sight tells where it is.
TEST(MovingShapes, LeaveAtOneSideAndReturnAtTheOther) {
  constexpr int64_t kSide = 24;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::string caption = moving_shape_caption(2, seed), way = caption.substr(caption.rfind(' ') + 1);
    const bool is_flat = way == "left" || way == "right", is_back = way == "left" || way == "up";
    int left = 0, returned = 0;
    int64_t last = kSide;
    for (int64_t frame = 0; frame < 50; ++frame) {
      const Seen seen = look_at(draw_moving_shape(2, seed, kSide, kSide, frame));
      const int64_t begin = is_flat ? seen.left : seen.top, end = is_flat ? seen.right : seen.bottom;
      const int64_t size = std::max<int64_t>(0, end - begin);  // less than half of the square is in sight below 8
      left += size < 8 && size > 0 && size < last && (is_back ? begin == 0 : end == kSide);
      returned += size < 8 && size > last && (is_back ? end == kSide : begin == 0);
      last = size;
    }
    EXPECT_GE(left, 1) << caption;
    EXPECT_GE(returned, 1) << caption;
  }
}

TEST(MovingShapes, ShowTheSameAtAnySizeAndRefuseNoFrame) {
  const Picture large = draw_moving_shape(6, 3, 128, 96, 11), small = draw_moving_shape(6, 3, 32, 24, 11);
  const Picture reduced = resample(large, {0, 0, 128, 96}, 32, 24);
  double difference = 0;
  for (size_t i = 0; i < small.rgb.size(); ++i) difference += std::abs(small.rgb[i] - reduced.rgb[i]);
  EXPECT_LT(difference / static_cast<double>(small.rgb.size()), 5);
  EXPECT_THAT(test::thrown_message([] { draw_moving_shape(0, 0, 4, 4, -1); }), HasSubstr("got -1"));
  EXPECT_THAT(moving_shape_caption(9, 1), testing::StartsWith("two bars move "));
  EXPECT_THAT(moving_shape_caption(8, 1), testing::StartsWith("an hourglass moves "));
}

TEST(Shapes, ReadTheirNumberFromAPath) {
  EXPECT_EQ(parse_builtin_shapes("builtin-shapes"), 10'000);
  EXPECT_EQ(parse_builtin_shapes("builtin-shapes:200"), 200);
  for (const char* other : {"builtin", "pictures", "", "a/builtin-shapes"})
    EXPECT_EQ(parse_builtin_shapes(other), std::nullopt) << other;
  const auto refusal = [](const std::string& path) {
    return test::thrown_message([&] { parse_builtin_shapes(path); });
  };
  for (const char* number : {"", "0", "-1", "2.5", "many", "9999999999999", "99999999999999999999"})
    EXPECT_THAT(refusal(concat("builtin-shapes:", number)),
                HasSubstr(concat("data.path = builtin-shapes:N must name a number of pictures an epoch from 1 to "
                                 "1099511627776: got builtin-shapes:",
                                 number, ", did you mean")));
  for (const char* near : {"builtin_shapes", "builtin-shape:9", "buildin-shapes"})
    EXPECT_THAT(refusal(near), HasSubstr(concat("got ", near, ", did you mean `builtin-shapes`?")));
  const test::TemporaryFolder folder;
  folder.write("x", "");
  EXPECT_EQ(parse_builtin_shapes(folder.path()), std::nullopt);
}

TEST(Shapes, HoldOutTheirShareInAddition) {
  EXPECT_EQ(held_out_shapes(10'000, 0.05), 500);
  EXPECT_EQ(held_out_shapes(3, 0.05), 1);
  EXPECT_EQ(held_out_shapes(10'000, 0), 0);
}

class ShapeSamplesTest : public testing::Test {
 protected:
  static ShapeOptions options(int64_t count) {
    return {.count = count, .width = 16, .mean = {0.5, 0.4, 0.3}, .deviation = {0.5, 0.25, 0.2}};
  }
  static at::Tensor image(const ShapeSamples& samples, int64_t index, uint64_t seed) {
    tensor::Batch batch = samples.make(1);
    samples.fill(index, seed, batch, 0);
    return batch.at("images")[0].clone();
  }
};

TEST_F(ShapeSamplesTest, NormaliseAndLabelPictures) {
  ShapeOptions o = options(30);
  const ShapeSamples samples(o);
  tensor::Batch batch = samples.make(20);
  for (int64_t i = 0; i < 20; ++i) samples.fill(i, 70 + i, batch, i);
  EXPECT_EQ(batch.at("images").sizes(), (std::vector<int64_t>{20, 3, 16, 16}));
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(batch.at("labels")[i].item<int64_t>(), i % kShapes);
    const Picture picture = draw_shape(i % kShapes, training_shape_seed(70 + i), 16, 16);
    for (int64_t c = 0; c < 3; ++c)
      EXPECT_NEAR(batch.at("images")[i][c][9][2].item<double>(),
                  (picture.rgb[(9 * 16 + 2) * 3 + c] / 255.0 - o.mean[c]) / o.deviation[c], 1e-6);
  }
  o.labels = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  const ShapeSamples renamed(o);
  renamed.fill(12, 0, batch, 0);
  EXPECT_EQ(batch.at("labels")[0].item<int64_t>(), 7);
}

TEST_F(ShapeSamplesTest, MirrorAndChangeNothingElseWithAugment) {
  ShapeOptions o = options(10);
  const ShapeSamples plain(o);
  o.augment = true;
  const ShapeSamples augmented(o);
  int64_t mirrored = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const at::Tensor as_drawn = image(plain, 7, seed), shown = image(augmented, 7, seed);
    const bool is_same = at::equal(shown, as_drawn);
    mirrored += !is_same;
    EXPECT_TRUE(is_same || at::equal(shown, as_drawn.flip(2))) << seed;
  }
  EXPECT_NEAR(mirrored, 30, 15);
}

TEST_F(ShapeSamplesTest, DrawNewPicturesEachEpochAndKeepHeldOutOnes) {
  ShapeOptions o = options(10);
  const BatchOptions in_order{.batch_size = 10, .seed = 3, .shuffle = false};
  Batches training(std::make_shared<ShapeSamples>(o), in_order);
  o.held_out = true;
  Batches held_out(std::make_shared<ShapeSamples>(o), in_order);
  const at::Tensor first = training.next().at("images").clone(), second = training.next().at("images").clone(),
                   kept = held_out.next().at("images").clone();
  BatchOptions other_seed = in_order;
  other_seed.seed = 4;
  EXPECT_TRUE(at::equal(Batches(std::make_shared<ShapeSamples>(o), other_seed).next().at("images"), kept));
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_FALSE(at::equal(first[i], second[i])) << i;
    EXPECT_FALSE(at::equal(first[i], kept[i])) << i;
  }
  EXPECT_TRUE(at::equal(held_out.next().at("images"), kept));
  training.rewind();
  EXPECT_TRUE(at::equal(training.next().at("images"), first));
}

TEST_F(ShapeSamplesTest, RefuseCheckpointsOfOtherOptions) {
  ShapeOptions o = options(200);
  const Batches before(std::make_shared<ShapeSamples>(o), {.batch_size = 10});
  o.count = 300;
  Batches after(std::make_shared<ShapeSamples>(o), {.batch_size = 10});
  EXPECT_THAT(test::thrown_message([&] { after.restore(before.state()); }),
              HasSubstr("images was 200 drawn shapes, now it is 300 drawn shapes"));
  EXPECT_THAT(test::thrown_message([] { ShapeSamples(options(0)); }), HasSubstr("got 0 pictures of 16 x 16"));
  o.labels = {1};
  EXPECT_THAT(test::thrown_message([&] { ShapeSamples{o}; }), HasSubstr("need 10 labels: got 1"));
  o.deviation = {1, 0, 1};
  EXPECT_THAT(test::thrown_message([&] { ShapeSamples{o}; }), HasSubstr("deviation (above 0)"));
}

}  // namespace
}  // namespace colossal::data::shapes_test
