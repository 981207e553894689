#include "colossal/data/order.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/seed.h"

namespace colossal::data {

Order::Order(int64_t count, uint64_t seed, int64_t epoch) : count_(count), half_bits_(1) {
  require(count >= 1, "data", "an order needs at least 1 sample: got ", count);
  while (half_bits_ < 31 && (uint64_t{1} << (2 * half_bits_)) < count_) ++half_bits_;
  require(count_ <= uint64_t{1} << 62, "data", "an order has at most 2^62 samples: got ", count);
  const uint64_t epoch_seed = derive_seed(seed, static_cast<uint64_t>(epoch));
  for (size_t round = 0; round < keys_.size(); ++round) keys_[round] = derive_seed(epoch_seed, round);
}

uint64_t Order::permute(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t key : keys_) {  // (L, R) -> (R, L ^ F(R)) is invertible for any F, so permute() is a permutation
    const uint64_t mixed = left ^ (splitmix64(right ^ key) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

int64_t Order::operator()(int64_t position) const {
  require(position >= 0 && static_cast<uint64_t>(position) < count_, "data", "position must be in [0, ", count_,
          "): got ", position);
  uint64_t value = static_cast<uint64_t>(position);
  do value = permute(value);  // ends, because the cycle through `position` returns to it at the latest
  while (value >= count_);
  return static_cast<int64_t>(value);
}

int64_t position_number(const nlohmann::json& position, const char* key) {
  constexpr uint64_t kMaxPosition = uint64_t{1} << 48;  // bounded, so that sums of a few numbers cannot overflow
  const bool has_key = position.is_object() && position.contains(key);
  // The parser stores whole numbers from 0 as unsigned; a program may store them as signed.
  const auto value = has_key ? position[key] : nlohmann::json();
  const bool is_whole = value.is_number_integer() && (value.is_number_unsigned() || value.get<int64_t>() >= 0) &&
                        value.get<uint64_t>() <= kMaxPosition;
  require(is_whole, "data", "the checkpoint's data position is damaged: ", key,
          " must be a whole number from 0 to 2^48: got ", printable(value.dump()));
  return value.get<int64_t>();
}

}  // namespace colossal::data
