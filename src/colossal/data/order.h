// The order in which samples are visited, as a function without a table or state.
#pragma once
#include <array>
#include <cstdint>

namespace colossal::data {

/// A permutation of [0, count) keyed by (seed, epoch). It applies a Feistel network on the next power of four,
/// repeatedly until the value is below count.
///
/// Cost: O(1) memory; fewer than 4 applications of the network are expected per call.
/// Errors: throws Error("data", ...) unless 1 <= count <= 2^62 and the position is in [0, count).
class Order {
 public:
  Order(int64_t count, uint64_t seed, int64_t epoch);
  int64_t operator()(int64_t position) const;

 private:
  uint64_t permute(uint64_t value) const;
  uint64_t count_;
  int half_bits_;
  std::array<uint64_t, 6> keys_;
};

}  // namespace colossal::data
