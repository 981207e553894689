// Similarity of pictures against values computed independently, with convolutions in fp64 in Python.
#include "colossal/evaluate/picture_similarity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/thrown_message.h"

namespace colossal::evaluate::picture_similarity_test {
namespace {

using testing::HasSubstr;

/// Returns a picture of 17 x 13 pixels, with the values value(i) rounded down, row by row.
template <class Value>
data::Picture picture_of(Value value) {
  data::Picture picture{.width = 17, .height = 13};
  for (int i = 0; i < 17 * 13 * 3; ++i) picture.rgb.push_back(static_cast<uint8_t>(std::floor(value(i))));
  return picture;
}

data::Picture first() {
  return picture_of([](int i) { return 127.5 + 120 * std::sin(.05 * i); });
}
data::Picture second() {
  return picture_of([](int i) { return 127.5 + 100 * std::sin(.05 * i + .3) + 15 * std::cos(1.7 * i); });
}

TEST(PictureSimilarity, HasKnownValues) {
  EXPECT_NEAR(structural_similarity(first(), second()), 0.9373792331256509, 1e-12);
  EXPECT_NEAR(peak_signal_to_noise(first(), second()), 18.96036875617551, 1e-11);
}

TEST(PictureSimilarity, PeaksForEqualPictures) {
  EXPECT_NEAR(structural_similarity(first(), first()), 1, 1e-12);
  EXPECT_EQ(peak_signal_to_noise(first(), first()), 100);
}

TEST(PictureSimilarity, RefusesSizesThatDoNotFit) {
  data::Picture other = first();
  other.width = 13, other.height = 17;
  EXPECT_THAT(test::thrown_message([&] { structural_similarity(first(), other); }), HasSubstr("17 x 13 and 13 x 17"));
  EXPECT_THAT(test::thrown_message([&] { peak_signal_to_noise(first(), other); }), HasSubstr("one size"));
  const data::Picture small{.width = 10, .height = 12, .rgb = std::vector<uint8_t>(360)};
  EXPECT_THAT(test::thrown_message([&] { structural_similarity(small, small); }), HasSubstr("at least 11 pixels"));
}

}  // namespace
}  // namespace colossal::evaluate::picture_similarity_test
