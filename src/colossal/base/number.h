// Numbers as text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal {

/// Returns the shortest text that reads back as the same double: "0.1", "1048576", "1e+300", "inf", "nan".
std::string print_number(double number);

/// Returns a number with `digits` significant digits, as "%.4g" prints it: text_of(1234.5678, 4) is "1235".
std::string text_of(double number, int digits);

/// Returns a number with `decimals` digits after the point, as "%.2f" prints it: fixed_text(0.5, 2) is "0.50".
std::string fixed_text(double number, int decimals);

/// Returns the double of the shortest text that reads back as the same float. For the float nearest to 1e-5 it is the
/// double 1e-5, so a decimal that was stored as a float is that decimal again.
double shortest_double(float number);

/// Returns the non-negative id that `text` spells in decimal digits. Returns nothing for any other text, and for
/// numbers that int64_t cannot hold.
std::optional<int64_t> parse_id(std::string_view text);

}  // namespace colossal
