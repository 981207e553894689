// The sizes of aspect-ratio buckets, the bucket and the part of a picture, and the pictures of a prior for each bucket.
#include "colossal/data/pictures/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/thrown_message.h"

namespace colossal::data {

static void PrintTo(const PictureSize& size, std::ostream* out) { *out << to_string(size); }

namespace buckets_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Sizes = std::vector<PictureSize>;

// make_bucket_resolutions((512, 512), 256, 1024, 64) of kohya-ss/sd-scripts returns this list.
TEST(Buckets, MatchKohyaForSquares) {
  const Sizes buckets = bucket_sizes({.size = {512, 512}, .multiple = 64});
  EXPECT_EQ(buckets, (Sizes{{256, 832},
                            {256, 896},
                            {256, 960},
                            {256, 1024},
                            {320, 704},
                            {320, 768},
                            {384, 640},
                            {448, 576},
                            {512, 512},
                            {576, 448},
                            {640, 384},
                            {704, 320},
                            {768, 320},
                            {832, 256},
                            {896, 256},
                            {960, 256},
                            {1024, 256}}));
}

// make_bucket_resolutions((768, 512), 320, 1216, 64) has the same buckets and the square 576x576.
TEST(Buckets, HaveTheSizeItselfInPlaceOfASquare) {
  const Sizes buckets = bucket_sizes({.size = {768, 512}, .multiple = 64});
  EXPECT_EQ(buckets, (Sizes{{320, 1088}, {320, 1152}, {320, 1216}, {384, 896},  {384, 960},  {384, 1024}, {448, 832},
                            {512, 704},  {512, 768},  {576, 640},  {640, 576},  {704, 512},  {768, 512},  {832, 448},
                            {896, 384},  {960, 384},  {1024, 384}, {1088, 320}, {1152, 320}, {1216, 320}}));
}

TEST(Buckets, RoundASizeOffTheirMultiplesDown) {
  EXPECT_THAT(bucket_sizes({.size = {500, 500}, .multiple = 64}), testing::Contains(PictureSize{448, 448}));
  EXPECT_THAT(bucket_sizes({.size = {64, 64}, .multiple = 64}), ElementsAre(PictureSize{64, 64}));
  EXPECT_THAT(bucket_sizes({.size = {50, 200}, .multiple = 64}),
              ElementsAre(PictureSize{64, 128}, PictureSize{128, 64}));
  EXPECT_THAT(bucket_sizes({.size = {2048, 128}, .multiple = 64}), testing::Contains(PictureSize{2048, 128}))
      << "although it is longer than twice the mean of its sides";
}

TEST(Buckets, CannotGrowWithinTheirBounds) {
  for (const auto& [size, multiple] :
       {std::pair{PictureSize{512, 512}, 64}, {{1024, 1024}, 64}, {{600, 400}, 8}, {{333, 777}, 32}, {{96, 64}, 16}}) {
    const Sizes buckets = bucket_sizes({.size = size, .multiple = multiple});
    const int64_t area = size.width * size.height;
    const double mean = std::sqrt(static_cast<double>(area));
    const PictureSize own{size.width / multiple * multiple, size.height / multiple * multiple};
    EXPECT_THAT(buckets, testing::Contains(own));
    for (size_t i = 0; i < buckets.size(); ++i) {
      const auto [width, height] = buckets[i];
      EXPECT_EQ(width % multiple + height % multiple, 0);
      EXPECT_LE(width * height, area);
      if (i > 0) EXPECT_TRUE(std::tie(buckets[i - 1].width, buckets[i - 1].height) < std::tie(width, height));
      if (buckets[i] == own) continue;
      EXPECT_GE(static_cast<double>(std::min(width, height)), mean / 2);
      EXPECT_LE(static_cast<double>(std::max(width, height)), mean * 2);
      EXPECT_TRUE((width + multiple) * height > area || width * (height + multiple) > area) << to_string(buckets[i]);
      EXPECT_EQ(std::count(buckets.begin(), buckets.end(), PictureSize{height, width}), 1) << "turned by a quarter";
    }
  }
}

TEST(Buckets, HaveTheSizeAloneWithMultipleZero) {
  EXPECT_THAT(bucket_sizes({.size = {500, 300}, .multiple = 0}), ElementsAre(PictureSize{500, 300}));
}

TEST(Buckets, RefuseWhatIsOffTheGridOfTheVae) {
  const auto refusal = [](const BucketOptions& options) {
    return test::thrown_message([&] { bucket_sizes(options); });
  };
  EXPECT_THAT(refusal({.size = {512, 512}, .multiple = 60, .grid = 8}),
              HasSubstr("buckets must be a multiple of the VAE's grid, 8 pixels: got 60; set data.buckets = 64"));
  EXPECT_THAT(refusal({.size = {512, 512}, .multiple = 3, .grid = 8}), HasSubstr("set data.buckets = 8"));
  EXPECT_THAT(refusal({.size = {512, 515}, .multiple = 0, .grid = 8}),
              HasSubstr("got 512x515; set data.size = [512, 512]"));
  EXPECT_THAT(refusal({.size = {500, 500}, .multiple = 64, .grid = 8}), IsEmpty()) << "its buckets are on the grid";
  EXPECT_THAT(refusal({.size = {512, 256}, .multiple = 512, .grid = 8}),
              HasSubstr("buckets must be at most the geometric mean of the sides of size: got 512, size 512x256"));
  EXPECT_THAT(refusal({.size = {512, 512}, .multiple = int64_t{1} << 40}), HasSubstr("geometric mean"));
  EXPECT_THAT(refusal({.size = {512, 512}, .multiple = -64}), HasSubstr("buckets must be at least 0: got -64"));
  EXPECT_THAT(refusal({.size = {512, 0}}), HasSubstr("size must have sides from 1 to 65535: got 512x0"));
  EXPECT_THAT(refusal({.size = {1 << 20, 512}}), HasSubstr("got 1048576x512"));
}

TEST(Buckets, TakeThePictureWithTheNearestRatio) {
  const Sizes buckets = bucket_sizes({.size = {512, 512}, .multiple = 64});
  const auto bucket = [&](int64_t width, int64_t height) { return buckets[nearest_bucket(buckets, {width, height})]; };
  EXPECT_EQ(bucket(64, 64), (PictureSize{512, 512}));
  EXPECT_EQ(bucket(1920, 1080), (PictureSize{640, 384}));
  EXPECT_EQ(bucket(1080, 1920), (PictureSize{384, 640}));
  EXPECT_EQ(bucket(20000, 100), (PictureSize{1024, 256}));
  EXPECT_EQ(bucket(1, 65535), (PictureSize{256, 1024}));
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const PictureSize picture{1 + static_cast<int64_t>(random() % 3000), 1 + static_cast<int64_t>(random() % 3000)};
    const auto distance = [&](const PictureSize& b) {
      const auto ratio = [](const PictureSize& s) {
        return std::log(static_cast<double>(s.width) / static_cast<double>(s.height));
      };
      return std::abs(ratio(b) - ratio(picture));
    };
    const double chosen = distance(buckets[nearest_bucket(buckets, picture)]);
    for (const PictureSize& other : buckets) EXPECT_LE(chosen, distance(other) + 1e-12) << to_string(picture);
  }
}

TEST(Buckets, CompareRatiosOnALogarithmicScale) {
  // 1.4 is nearer to 1 by difference and to 1.9 by ratio.
  const Sizes buckets{{100, 100}, {190, 100}};
  EXPECT_EQ(nearest_bucket(buckets, {140, 100}), 1u);
  EXPECT_EQ(nearest_bucket(buckets, {137, 100}), 0u);
}

TEST(Buckets, BreakTiesByAreaAndThenByOrder) {
  EXPECT_EQ(nearest_bucket({{448, 448}, {512, 512}}, {448, 448}), 1u);
  EXPECT_EQ(nearest_bucket({{512, 512}, {448, 448}}, {448, 448}), 0u);
  EXPECT_EQ(nearest_bucket({{448, 512}, {512, 448}}, {300, 300}), 0u);
  EXPECT_EQ(nearest_bucket({{65535, 65534}, {65534, 65535}}, {65534, 65535}), 1u) << "the comparison is exact";
}

TEST(Buckets, RefusePicturesWithoutSides) {
  const auto refusal = [](const Sizes& buckets, const PictureSize& picture) {
    return test::thrown_message([&] { nearest_bucket(buckets, picture); });
  };
  EXPECT_THAT(refusal({{64, 64}}, {0, 5}), HasSubstr("a picture must have sides from 1 to 65535: got 0x5"));
  EXPECT_THAT(refusal({{64, 0}}, {5, 5}), HasSubstr("a bucket must have sides"));
  EXPECT_THAT(refusal({}, {5, 5}), HasSubstr("a picture needs a bucket"));
}

void expect_crop(const Crop& crop, double left, double top, double width, double height) {
  EXPECT_DOUBLE_EQ(crop.box.left, left);
  EXPECT_DOUBLE_EQ(crop.box.top, top);
  EXPECT_DOUBLE_EQ(crop.box.width, width);
  EXPECT_DOUBLE_EQ(crop.box.height, height);
}

TEST(Buckets, CropAroundTheMiddleAndCover) {
  const Crop wide = middle_crop({1920, 1080}, {640, 384});
  expect_crop(wide, 60, 0, 1800, 1080);
  EXPECT_EQ(wide.width, 640);
  EXPECT_EQ(wide.height, 384);
  expect_crop(middle_crop({1080, 1920}, {384, 640}), 0, 60, 1080, 1800);
  expect_crop(middle_crop({100, 100}, {512, 512}), 0, 0, 100, 100);
  expect_crop(middle_crop({100, 100}, {256, 512}), 25, 0, 50, 100);
  expect_crop(middle_crop({512, 1024}, {256, 512}), 0, 0, 512, 1024);
}

const Sizes kThree{{256, 512}, {512, 512}, {512, 256}};

TEST(Buckets, DivideEachPictureOnce) {
  EXPECT_THAT(pictures_of_buckets(kThree, {{10, 10}, {30, 10}, {9, 10}, {10, 30}}),
              ElementsAre(ElementsAre(3), ElementsAre(0, 2), ElementsAre(1)));
}

TEST(Prior, GoesToTheBucketsThatTrainingPicturesHave) {
  const Sizes prior{{10, 10}, {10, 20}, {10, 10}};
  EXPECT_THAT(prior_of_buckets(kThree, {{7}, {8, 9}, {}}, prior),
              ElementsAre(ElementsAre(1), ElementsAre(0, 2), IsEmpty()));
  EXPECT_THAT(prior_of_buckets(kThree, {{7}, {}, {}}, prior), ElementsAre(ElementsAre(0, 1, 2), IsEmpty(), IsEmpty()))
      << "no picture of the prior is left out";
}

TEST(Prior, LendsPicturesToBucketsThatGotNone) {
  EXPECT_THAT(prior_of_buckets(kThree, {{0}, {1}, {2}}, {{10, 10}, {20, 10}}),
              ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(prior_of_buckets(kThree, {{0}, {1}, {2}}, {{20, 10}}),
              ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(0)));
}

TEST(Prior, NeedsPictures) {
  EXPECT_THAT(test::thrown_message([] { prior_of_buckets(kThree, {{0}, {}, {}}, {}); }),
              HasSubstr("the prior must have pictures: got none; set data.prior"));
}

}  // namespace
}  // namespace buckets_test
}  // namespace colossal::data
