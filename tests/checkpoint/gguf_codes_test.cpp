#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "colossal/checkpoint/gguf/blocks.h"

namespace colossal::checkpoint::gguf_codes_test {
namespace {

constexpr int64_t kRows = 5, kColumns = 512;

/// Returns blocks of random bytes. Each block starts with `halves` valid binary16 values.
std::string random_blocks(const formats::GgufType& type, int64_t halves, unsigned seed) {
  std::mt19937 draw(seed);
  std::string blocks(static_cast<size_t>(kRows * kColumns / type.block * type.bytes), '\0');
  for (char& byte : blocks) byte = static_cast<char>(draw() % 256);
  for (size_t block = 0; block < blocks.size(); block += static_cast<size_t>(type.bytes))
    for (int64_t h = 0; h < halves; ++h) {
      const c10::Half number(0.01F * static_cast<float>(static_cast<int>(draw() % 200) - 100));
      blocks[block + 2 * h] = static_cast<char>(number.x & 255),
                         blocks[block + 2 * h + 1] = static_cast<char>(number.x >> 8);
    }
  return blocks;
}

at::Tensor decoded(const formats::GgufType& type, const std::string& blocks) {
  at::Tensor numbers = at::empty({kRows, kColumns}, at::kFloat);
  decode_gguf(type, blocks.data(), kRows * kColumns, numbers.mutable_data_ptr<float>());
  return numbers;
}

TEST(GgufCodes, EqualTheDecodedBlocks) {
  for (const auto& [name, halves] : {std::pair{"Q8_0", 1}, {"Q4_0", 1}, {"Q4_1", 2}, {"Q4_K", 2}}) {
    SCOPED_TRACE(name);
    const formats::GgufType& type = *formats::gguf_type(name);
    std::string blocks = random_blocks(type, halves, 3);  // Q8_0: with values of -128
    const auto codes = codes_of_gguf(type, blocks.data(), kRows, kColumns);
    ASSERT_TRUE(codes);
    codes->check();
    const at::Tensor want = decoded(type, blocks);
    // The two computations differ in the rounding of one product and one sum.
    EXPECT_LE((codes->values() - want).abs().max().item<float>(), want.abs().max().item<float>() * 0x1p-22);
    EXPECT_GT(want.abs().max().item<float>(), 1);
    const c10::Half endless(std::numeric_limits<float>::infinity());
    blocks[0] = static_cast<char>(endless.x & 255), blocks[1] = static_cast<char>(endless.x >> 8);
    EXPECT_FALSE(codes_of_gguf(type, blocks.data(), kRows, kColumns));
  }
  for (const char* name : {"F16", "Q6_K", "Q5_0"})
    EXPECT_FALSE(codes_of_gguf(*formats::gguf_type(name), random_blocks(*formats::gguf_type(name), 0, 1).data(), kRows,
                               kColumns));
}

}  // namespace
}  // namespace colossal::checkpoint::gguf_codes_test
