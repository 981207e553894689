#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "colossal/checkpoint/gguf/blocks.h"

namespace colossal::checkpoint::gguf_blocks_test {
namespace {

std::vector<float> normal_numbers(int64_t count, float mean = 0) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(mean);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> there_and_back(const char* name, const std::vector<float>& x) {
  const formats::GgufType& type = *formats::gguf_type(name);
  const auto count = static_cast<int64_t>(x.size());
  std::string blocks(static_cast<size_t>(count / type.block * type.bytes), '\0');
  encode_gguf(type, x.data(), count, blocks.data());
  std::vector<float> back(x.size());
  decode_gguf(type, blocks.data(), count, back.data());
  return back;
}

/// Returns the root mean square of the errors, relative to the root mean square of the values.
double relative_error(const std::vector<float>& x, const std::vector<float>& back) {
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) off += std::pow(x[i] - back[i], 2), all += std::pow(x[i], 2);
  return std::sqrt(off / all);
}

/// Rounds to `levels` steps between the minimum and the maximum of each group, with scales in full precision: the
/// result without a search.
std::vector<float> rounded_plainly(const std::vector<float>& x, size_t group, float levels) {
  std::vector<float> back(x.size());
  for (size_t at = 0; at < x.size(); at += group) {
    const auto [low, high] =
        std::minmax_element(x.begin() + static_cast<long>(at), x.begin() + static_cast<long>(at + group));
    const float least = std::min(*low, 0.0F), step = (*high - least) / levels;
    for (size_t i = at; i < at + group; ++i) back[i] = least + std::nearbyint((x[i] - least) / step) * step;
  }
  return back;
}

TEST(GgufBlocks, DecodesByTheFormat) {
  // d is 0.5, and the minimum, if the type has one, is -1: half precision 0x3800 and 0xBC00.
  const std::string d("\x00\x38", 2), m("\x00\xBC", 2);
  std::vector<float> x(256);
  const auto decode = [&](const char* name, const std::string& block) {
    ASSERT_EQ(static_cast<int64_t>(block.size()), formats::gguf_type(name)->bytes) << name;
    decode_gguf(*formats::gguf_type(name), block.data(), formats::gguf_type(name)->block, x.data());
  };
  decode("Q8_0", d + "\x01\xFF" + std::string(30, '\x02'));
  EXPECT_EQ(x[0], 0.5F);
  EXPECT_EQ(x[1], -0.5F);
  EXPECT_EQ(x[31], 1.0F);
  decode("Q4_0", d + "\x1F" + std::string(15, '\x88'));
  EXPECT_EQ(x[0], 3.5F);
  EXPECT_EQ(x[16], -3.5F);
  EXPECT_EQ(x[1], 0.0F);
  decode("Q4_1", d + m + "\x1F" + std::string(15, '\0'));
  EXPECT_EQ(x[0], 6.5F);
  EXPECT_EQ(x[16], -0.5F);
  EXPECT_EQ(x[1], -1.0F);
  decode("Q5_0", d + std::string("\x01\x00\x01\x00", 4) + "\x1F" + std::string(15, '\0'));
  EXPECT_EQ(x[0], 7.5F);
  EXPECT_EQ(x[16], 0.5F);
  EXPECT_EQ(x[1], -8.0F);
  decode("Q5_1", d + m + std::string("\x01\x00\x00\x00", 4) + "\x1F" + std::string(15, '\0'));
  EXPECT_EQ(x[0], 14.5F);
  EXPECT_EQ(x[16], -0.5F);
  // Group 0 has scale 2 and minimum 3. Group 4 has scale 16 + 1 and minimum 32 + 2, with the upper bits stored above
  // the bits of group 0.
  std::string packed(12, '\0');
  packed[0] = static_cast<char>(2 | 1 << 6), packed[4] = static_cast<char>(3 | 2 << 6),
  packed[8] = static_cast<char>(1 | 2 << 4);
  decode("Q4_K", d + d + packed + std::string(128, '\x21'));
  EXPECT_EQ(x[0], 0.5F * 2 * 1 - 0.5F * 3);
  EXPECT_EQ(x[128], 0.5F * 17 * 1 - 0.5F * 34);
  EXPECT_EQ(x[32], 0.0F);
  decode("Q5_K", d + d + packed + std::string(32, '\x11') + std::string(128, '\x21'));
  EXPECT_EQ(x[0], 0.5F * 2 * 17 - 0.5F * 3);
  EXPECT_EQ(x[128], 0.5F * 17 * 17 - 0.5F * 34);
  decode("Q6_K", std::string(128, '\x21') + std::string(64, '\xE4') + "\x02\xFF" + std::string(14, '\x01') + d);
  EXPECT_EQ(x[0], 0.5F * 2 * (1 - 32));
  EXPECT_EQ(x[16], -0.5F * (1 - 32));
  EXPECT_EQ(x[32], 0.5F * (17 - 32));
  EXPECT_EQ(x[64], 0.5F * (2 + 32 - 32));
  EXPECT_EQ(x[96], 0.5F * (2 + 48 - 32));
}

TEST(GgufBlocks, ListsSupportedTypes) {
  for (const char* name : {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"})
    EXPECT_TRUE(can_encode(*formats::gguf_type(name))) << name;
  for (const char* name : {"Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K"}) {
    EXPECT_TRUE(can_decode(*formats::gguf_type(name))) << name;
    EXPECT_FALSE(can_encode(*formats::gguf_type(name))) << name;
  }
  for (const char* name : {"IQ4_NL", "TQ1_0", "I32", "Q8_K"})
    EXPECT_FALSE(can_decode(*formats::gguf_type(name))) << name;
}

TEST(GgufBlocks, RoundsToHalfAStep) {
  const std::vector<float> x = normal_numbers(512);
  EXPECT_EQ(there_and_back("F32", x), x);
  const std::vector<float> half = there_and_back("F16", x), brain = there_and_back("BF16", x),
                           codes = there_and_back("Q8_0", x), few = there_and_back("Q4_0", x);
  for (size_t i = 0; i < x.size(); ++i) {
    float most = 0;
    for (size_t j = i / 32 * 32; j < (i / 32 + 1) * 32; ++j) most = std::max(most, std::fabs(x[j]));
    EXPECT_LE(std::fabs(half[i] - x[i]), std::fabs(x[i]) * 0x1p-11F + 0x1p-25F);
    EXPECT_LE(std::fabs(brain[i] - x[i]), std::fabs(x[i]) * 0x1p-8F);
    EXPECT_LE(std::fabs(codes[i] - x[i]), most * (0.5F / 127 + 0x1p-11F));  // plus the rounding of the scale
    EXPECT_LE(std::fabs(few[i] - x[i]), most * (1.0F / 8 + 0x1p-11F));      // one sign has only 7 steps
  }
}

/// The range of 32 normal values is about 4.1 deviations, whose 15 steps have an error of 4.1 / 15 / sqrt(12) = 0.079.
/// A search must be better than rounding between the extremes, although its scales have 6 bits. The range of Q6_K has
/// 63 steps.
TEST(GgufBlocks, FindsBetterScalesThanPlainRounding) {
  for (const float mean : {0.0F, 1.0F}) {
    const std::vector<float> x = normal_numbers(256 * 64, mean);
    EXPECT_LT(relative_error(x, there_and_back("Q4_K", x)), relative_error(x, rounded_plainly(x, 32, 15))) << mean;
  }
  const std::vector<float> x = normal_numbers(256 * 64);
  EXPECT_LT(relative_error(x, there_and_back("Q4_K", x)), 0.079);
  EXPECT_LT(relative_error(x, there_and_back("Q6_K", x)), 1.0 / 32 / std::sqrt(12) * 2.2);
}

TEST(GgufBlocks, EncodesZerosAndTinyValuesAsFinite) {
  for (const char* name : {"F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"})
    for (const float value : {0.0F, -0.0F, 1e-42F, -3e-38F, 60000.0F, -1e-8F}) {
      std::vector<float> x(256, value);
      x[5] = 0;
      for (const float back : there_and_back(name, x)) EXPECT_TRUE(std::isfinite(back)) << name << " " << value;
    }
}

}  // namespace
}  // namespace colossal::checkpoint::gguf_blocks_test
