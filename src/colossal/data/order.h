// The order in which samples are visited, as a function: no table, no state.
#pragma once
#include <array>
#include <cstdint>

namespace colossal::data {

/// A permutation of [0, count) keyed by (seed, epoch): a Feistel network on the next power of four, walked until it
/// lands inside.
///
/// Cost: O(1) memory; fewer than 4 rounds of the network expected per call.
/// Errors: throws unless count >= 1 and the position lies in [0, count).
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
