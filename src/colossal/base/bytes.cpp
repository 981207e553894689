#include "colossal/base/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "colossal/base/number.h"

namespace colossal {
namespace {

constexpr std::array<const char*, 7> kBinaryUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

/// Returns the number of bytes of a unit in lower case, or 0 if there is no such unit.
int64_t bytes_of_unit(const std::string& unit) {
  if (unit.empty() || unit == "b") return 1;
  int64_t decimal = 1, binary = 1;
  for (const char letter : {'k', 'm', 'g', 't', 'p', 'e'}) {
    decimal *= 1000;
    binary *= 1024;
    if (unit == std::string{letter, 'b'}) return decimal;
    if (unit == std::string{letter, 'i', 'b'}) return binary;
  }
  return 0;
}

std::string readable(int64_t bytes, bool up) {
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(amount) >= 1024 && unit + 1 < kBinaryUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || amount >= 100 ? 0 : 1;
  const double scale = decimals == 0 ? 1 : 10;
  return fixed_text(up ? std::ceil(amount * scale) / scale : amount, decimals) + " " + kBinaryUnits[unit];
}

}  // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  const auto end_of_number = text.find_first_not_of("0123456789.");
  const std::string_view digits = text.substr(0, end_of_number);
  std::string unit;
  if (end_of_number != std::string_view::npos) {
    for (const char c : text.substr(end_of_number)) {
      if (c != ' ' || !unit.empty()) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  const int64_t scale = bytes_of_unit(unit);
  if (scale == 0 || digits.empty()) return std::nullopt;
  const char* end = digits.data() + digits.size();
  int64_t whole = 0;
  if (const auto parsed = std::from_chars(digits.data(), end, whole); parsed.ec == std::errc() && parsed.ptr == end) {
    int64_t bytes = 0;
    return __builtin_mul_overflow(whole, scale, &bytes) ? std::nullopt : std::optional(bytes);
  }
  double number = 0;
  const auto parsed = std::from_chars(digits.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  const double bytes = std::floor(number * static_cast<double>(scale));
  return bytes < 9.2e18 ? std::optional(static_cast<int64_t>(bytes)) : std::nullopt;
}

std::string print_bytes(int64_t bytes) {
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < kBinaryUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kBinaryUnits[unit];
}

std::string readable_bytes(int64_t bytes) { return readable(bytes, /*up=*/false); }

std::string readable_at_least(int64_t bytes) { return readable(bytes, /*up=*/true); }

}  // namespace colossal
