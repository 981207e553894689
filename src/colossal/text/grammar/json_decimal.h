// Exact decimal numbers in JSON's spelling; doubles lose digits beyond 17.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace colossal::text {

/// The number sign * digits * 10^power. `digits` has no zeros at either end; zero has no digits.
class Decimal {
 public:
  /// Parses `spelling`, which must be a JSON number.
  explicit Decimal(const std::string& spelling);
  /// Returns the number as text. Equal numbers have equal texts.
  std::string text() const { return (negative_ ? "-" : "") + digits_ + "e" + std::to_string(power_); }
  bool is_whole() const { return power_ >= 0; }
  bool is_zero() const { return digits_.empty(); }
  bool is_negative() const { return negative_; }
  int64_t decimals() const { return power_ < 0 ? -power_ : 0; }
  /// Returns the largest integer that is at most this number * 10^scale; no value if its size exceeds 10^18.
  std::optional<int64_t> floor(int64_t scale = 0) const;
  /// Returns the smallest integer that is at least this number * 10^scale; no value if its size exceeds 10^18.
  std::optional<int64_t> ceil(int64_t scale = 0) const;
  friend bool operator==(const Decimal&, const Decimal&) = default;
  friend bool operator<(const Decimal& a, const Decimal& b);

 private:
  /// Returns the integer part of |this| * 10^scale, and whether it is exact.
  std::optional<std::pair<int64_t, bool>> scaled(int64_t scale) const;
  bool negative_ = false;
  std::string digits_;
  int64_t power_ = 0;
};

}  // namespace colossal::text
