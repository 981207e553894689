#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/ops/parallel.h"

namespace colossal::checkpoint {
namespace {

constexpr int64_t kGroup = 32;

/// Returns the binary16 value at byte `at` of each block: fp32 [rows, blocks].
at::Tensor halves(const at::Tensor& blocks, int64_t at) {
  return blocks.narrow(2, at, 2).contiguous().view(at::kHalf).squeeze(2).to(at::kFloat);
}

/// Splits bytes [..., n] into 4-bit values [..., 2 n]: all lower halves, then all upper halves.
at::Tensor lower_then_upper(const at::Tensor& bytes) {
  return at::cat({bytes.bitwise_and(15), bytes.bitwise_right_shift(4)}, -1);
}

/// Unpacks 12 bytes into the 6-bit scales and minima of 8 groups: uint8 [..., 8] each.
std::pair<at::Tensor, at::Tensor> of_six_bits(const at::Tensor& bytes) {
  const at::Tensor first = bytes.narrow(2, 0, 4), second = bytes.narrow(2, 4, 4), third = bytes.narrow(2, 8, 4);
  const auto upper = [](const at::Tensor& x) { return x.bitwise_right_shift(6).bitwise_left_shift(4); };
  return {at::cat({first.bitwise_and(63), third.bitwise_and(15).bitwise_or(upper(first))}, -1),
          at::cat({second.bitwise_and(63), third.bitwise_right_shift(4).bitwise_or(upper(second))}, -1)};
}

ops::GroupCodes codes_of_q4_k(const at::Tensor& blocks) {
  const auto [scales, minima] = of_six_bits(blocks.narrow(2, 4, 12));
  // There are 128 bytes. In each 32 of them the lower halves are one group, and the upper halves the next.
  const at::Tensor codes = lower_then_upper(blocks.narrow(2, 16, 128).unflatten(2, {4, kGroup}));
  return {.bits = 4,
          .group = kGroup,
          .codes = codes.flatten(1),
          .scales = (halves(blocks, 0).unsqueeze(2) * scales).flatten(1),
          .minima = (halves(blocks, 2).unsqueeze(2) * minima).neg_().flatten(1)};
}

/// Q4_0, or with `minima` Q4_1, which stores a minimum after the scale.
ops::GroupCodes codes_of_plain_blocks(const at::Tensor& blocks, bool minima) {
  return {.bits = 4,
          .group = kGroup,
          .codes = lower_then_upper(blocks.slice(2, minima ? 4 : 2)).flatten(1),
          .scales = halves(blocks, 0),
          .minima = minima ? halves(blocks, 2) : at::Tensor()};
}

/// Copies the codes of a block of Q8_0, which are int8, as unsigned codes.
void copy_block(const char* from, char* to) {
  constexpr uint64_t kSigns = 0x8080808080808080;
  for (int64_t i = 0; i < kGroup; i += 8) {
    uint64_t codes;
    std::memcpy(&codes, from + i, 8);
    codes ^= kSigns;
    std::memcpy(to + i, &codes, 8);
  }
}

ops::GroupCodes codes_of_q8_0(const at::Tensor& blocks) {
  const int64_t rows = blocks.size(0), groups = blocks.size(1), block_bytes = blocks.size(2);
  const at::Tensor codes = at::empty({rows, groups * kGroup}, at::kByte);
  const auto* from = static_cast<const char*>(blocks.const_data_ptr());
  auto* to = static_cast<char*>(codes.mutable_data_ptr());
  ops::parallel_for(0, rows, std::max<int64_t>(1, 32768 / codes.size(1)), [&](int64_t first, int64_t end) {
    for (int64_t b = first * groups; b < end * groups; ++b) copy_block(from + b * block_bytes + 2, to + b * kGroup);
  });
  return {.bits = 8, .group = kGroup, .codes = codes, .scales = halves(blocks, 0)};
}

}  // namespace

std::optional<ops::GroupCodes> codes_of_gguf(const formats::GgufType& type, const char* bytes, int64_t rows,
                                             int64_t columns) {
  const std::string_view name = type.name;
  if (name != "Q8_0" && name != "Q4_0" && name != "Q4_1" && name != "Q4_K") return std::nullopt;
  const at::Tensor blocks =
      at::from_blob(const_cast<char*>(bytes), {rows, columns / type.block, type.bytes}, at::kByte);
  ops::GroupCodes codes = name == "Q8_0"   ? codes_of_q8_0(blocks)
                          : name == "Q4_K" ? codes_of_q4_k(blocks)
                                           : codes_of_plain_blocks(blocks, name == "Q4_1");
  const at::Tensor all = codes.minima.defined() ? at::cat({codes.scales, codes.minima}) : codes.scales;
  if (!all.isfinite().all().item<bool>()) return std::nullopt;
  return codes;
}

}  // namespace colossal::checkpoint
