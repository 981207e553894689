// The order in which samples are visited, as a function without a table or state, and the numbers of a data position.
#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

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

/// Returns the number of `position`, a data position, under `key`. It is checked, because a checkpoint may have been
/// edited. Errors ("data"): there is none, or it is no whole number from 0 to 2^48.
int64_t position_number(const nlohmann::json& position, const char* key);

}  // namespace colossal::data
