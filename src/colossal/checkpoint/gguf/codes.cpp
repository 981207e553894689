#include "colossal/checkpoint/gguf/codes.h"

#include <ATen/ATen.h>

#include <string_view>
#include <utility>

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

/// `is_signed` is true for Q8_0, which stores int8 values. Otherwise the type is Q4_0, or with `minima` Q4_1, which
/// stores a minimum after the scale.
ops::GroupCodes codes_of_plain_blocks(const at::Tensor& blocks, bool is_signed, bool minima) {
  const at::Tensor bytes = blocks.slice(2, minima ? 4 : 2);
  return {.bits = is_signed ? 8 : 4,
          .group = kGroup,
          .codes = (is_signed ? bytes.bitwise_xor(128) : lower_then_upper(bytes)).flatten(1),
          .scales = halves(blocks, 0),
          .minima = minima ? halves(blocks, 2) : at::Tensor()};
}

}  // namespace

std::optional<ops::GroupCodes> codes_of_gguf(const formats::GgufType& type, const char* bytes, int64_t rows,
                                             int64_t columns) {
  const std::string_view name = type.name;
  if (name != "Q8_0" && name != "Q4_0" && name != "Q4_1" && name != "Q4_K") return std::nullopt;
  const at::Tensor blocks =
      at::from_blob(const_cast<char*>(bytes), {rows, columns / type.block, type.bytes}, at::kByte);
  ops::GroupCodes codes =
      name == "Q4_K" ? codes_of_q4_k(blocks) : codes_of_plain_blocks(blocks, name == "Q8_0", name == "Q4_1");
  const bool has_lowest = codes.bits == 8 && codes.codes.eq(0).any().item<bool>();
  const at::Tensor all = codes.minima.defined() ? at::cat({codes.scales, codes.minima}) : codes.scales;
  if (has_lowest || !all.isfinite().all().item<bool>()) return std::nullopt;
  return codes;
}

}  // namespace colossal::checkpoint
