#include "colossal/text/grammar/json_decimal.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace colossal::text {
namespace {

constexpr int64_t kMaxPower = std::numeric_limits<int32_t>::max();

}  // namespace

Decimal::Decimal(const std::string& spelling) {
  size_t at = spelling.starts_with("-") ? 1 : 0;
  bool has_point = false;
  for (; at < spelling.size() && spelling[at] != 'e' && spelling[at] != 'E'; ++at) {
    if (spelling[at] == '.') {
      has_point = true;
      continue;
    }
    digits_ += spelling[at];
    if (has_point) --power_;
  }
  if (at < spelling.size()) {
    const char* begin = spelling.data() + at + 1;
    int64_t exponent = 0;
    const auto parsed = std::from_chars(begin + (*begin == '+' ? 1 : 0), spelling.data() + spelling.size(), exponent);
    if (parsed.ec != std::errc()) exponent = *begin == '-' ? -kMaxPower : kMaxPower;
    power_ += std::clamp(exponent, -kMaxPower, kMaxPower);
  }
  digits_.erase(0, std::min(digits_.find_first_not_of('0'), digits_.size()));
  while (digits_.ends_with('0')) digits_.pop_back(), ++power_;
  if (digits_.empty()) power_ = 0;
  negative_ = spelling.starts_with("-") && !digits_.empty();
}

std::optional<std::pair<int64_t, bool>> Decimal::scaled(int64_t scale) const {
  const int64_t length = static_cast<int64_t>(digits_.size()) + power_ + scale;  // number of digits before the point
  if (digits_.empty()) return std::pair<int64_t, bool>{0, true};
  if (length > 19) return {};
  std::string whole = length > 0 ? digits_.substr(0, static_cast<size_t>(length)) : "0";
  const bool is_exact = length >= static_cast<int64_t>(digits_.size());
  if (is_exact) whole.append(static_cast<size_t>(length) - digits_.size(), '0');
  const uint64_t value = std::stoull(whole);
  constexpr uint64_t kMaxScaled = 1000000000000000000;
  if (value > kMaxScaled) return {};
  return std::pair<int64_t, bool>{static_cast<int64_t>(value), is_exact};
}

std::optional<int64_t> Decimal::floor(int64_t scale) const {
  const auto size = scaled(scale);
  if (!size) return {};
  return negative_ ? -size->first - (size->second ? 0 : 1) : size->first;
}

std::optional<int64_t> Decimal::ceil(int64_t scale) const {
  const auto size = scaled(scale);
  if (!size) return {};
  return negative_ ? -size->first : size->first + (size->second ? 0 : 1);
}

bool operator<(const Decimal& a, const Decimal& b) {
  if (a.negative_ != b.negative_) return a.negative_;
  const auto is_smaller = [](const Decimal& x, const Decimal& y) {
    if (x.is_zero() || y.is_zero()) return x.is_zero() && !y.is_zero();
    const int64_t of_x = static_cast<int64_t>(x.digits_.size()) + x.power_;
    const int64_t of_y = static_cast<int64_t>(y.digits_.size()) + y.power_;
    return of_x != of_y ? of_x < of_y : x.digits_ < y.digits_;  // as text: a shorter number continues with zeros
  };
  return a.negative_ ? is_smaller(b, a) : is_smaller(a, b);
}

}  // namespace colossal::text
