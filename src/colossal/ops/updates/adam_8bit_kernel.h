// Bodies of the device kernels for 8-bit codes and for Adam's step on them; see adam_8bit.h. Each thread holds four
// neighbouring elements of a block of codes. The CPU versions process a whole block in the nearest cache:
// codes_kernel.h and adam_8bit.cpp.
#pragma once
#include "colossal/ops/updates/update_kernel.h"

namespace colossal::ops {
namespace {

/// Number of threads of a block. Together they hold all its elements at once.
constexpr int kCodeThreads = static_cast<int>(kCodeBlock) / kLanes<float>;

/// The elements of this thread in block number `block` of n values.
struct Quarter {
  int64_t first, count;  ///< count is less than 4, or 0, at the end of the values
  COLOSSAL_DEVICE Quarter(int64_t block, int64_t n)
      : first(block * kCodeBlock + kLanes<float> * block_thread()),
        count(first + kLanes<float> <= n ? kLanes<float> : (first < n ? n - first : 0)) {}
  COLOSSAL_DEVICE Tail part() const { return {count}; }
};

COLOSSAL_DEVICE inline Vec<float> decoded(const CodedNumbers& a, int64_t block, const Quarter& own) {
  Vec<float> v(0);
  for (int lane = 0; lane < kLanes<float>; ++lane)
    if (lane < own.count) v[lane] = a.table.values[a.codes[own.first + lane]] * a.scales[block];
  return v;
}

COLOSSAL_DEVICE inline uint8_t code_of(const CodeTable& t, float quotient) {
  const auto bits = static_cast<int32_t>(bits_of(quotient));
  const int32_t run = (bits & 0x7FFFFFFF) >> 16, last = run > t.last_run ? t.last_run : run;
  const int32_t entry = t.runs[last < t.first_run ? 0 : last - t.first_run];
  const int32_t code = (entry >> 16) + ((bits & 0xFFFF) > (entry & 0xFFFF) ? 1 : 0);
  return static_cast<uint8_t>(t.zero + ((bits < 0 && t.sign_mask != 0) ? -code : code));
}

/// Every thread of the block must call it, also a thread without elements. No thread changes the scale before all have
/// read it, because max_of synchronises them.
COLOSSAL_DEVICE inline void encode(const CodedNumbers& a, int64_t block, const Quarter& own, const Vec<float>& v) {
  const float scale = max_of<float>(select(v < Vec<float>(0), -v, v)), divisor = scale > 0 ? scale : 1;
  for (int lane = 0; lane < kLanes<float>; ++lane)
    if (lane < own.count) a.codes[own.first + lane] = code_of(a.table, v[lane] / divisor);
  once([&] { a.scales[block] = scale; });
}

COLOSSAL_DEVICE inline void encode_numbers(const float* values, const CodedNumbers& a, int64_t n, int64_t block) {
  const Quarter own(block, n);
  encode(a, block, own, load(values + own.first, own.part()));
}

COLOSSAL_DEVICE inline void decode_numbers(const CodedNumbers& a, float* values, int64_t n, int64_t block) {
  const Quarter own(block, n);
  store(values + own.first, decoded(a, block, own), own.part());
}

template <class T, class G>
COLOSSAL_DEVICE void adam_8bit_block(const UpdateBuffers<T>& u, const G* gradients, const AdamRule<float>& rule,
                                     const CodedNumbers& first, const CodedNumbers& second, int64_t n, int64_t block) {
  const Quarter own(block, n);
  const Tail part = own.part();
  Vec<float> moments[2] = {decoded(first, block, own), decoded(second, block, own)};
  const Vec<float> gradient = load(gradients + own.first, part) * u.gradient_scale;
  const Vec<float> p = rule(load(u.values + own.first, part), gradient, moments);
  store(u.values + own.first, p, part);
  if (u.copy_type == Narrow::Bf16) store(static_cast<Bf16*>(u.copy) + own.first, p, part);
  if (u.copy_type == Narrow::Half) store(static_cast<Half*>(u.copy) + own.first, p, part);
  encode(first, block, own, only<float>(moments[0], part, 0));
  encode(second, block, own, only<float>(moments[1], part, 0));
}

template <class T>
COLOSSAL_DEVICE void adam_8bit(const UpdateBuffers<T>& u, const AdamFactors<float>& f, const CodedNumbers& first,
                               const CodedNumbers& second, int64_t n, int64_t block) {
  const AdamRule<float> rule{f};
  if constexpr (std::is_same_v<T, float>) {
    if (u.gradient_type == Narrow::Bf16)
      return adam_8bit_block(u, static_cast<const Bf16*>(u.gradients), rule, first, second, n, block);
    if (u.gradient_type == Narrow::Half)
      return adam_8bit_block(u, static_cast<const Half*>(u.gradients), rule, first, second, n, block);
  }
  adam_8bit_block(u, static_cast<const T*>(u.gradients), rule, first, second, n, block);
}

}  // namespace
}  // namespace colossal::ops
