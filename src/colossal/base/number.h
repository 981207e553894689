// Numbers as text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal {

/// The shortest text that reads back as the same double: "0.1", "1048576", "1e+300", "inf", "nan".
std::string print_number(double number);

/// The double of the shortest text that reads back as the same float: 1e-5 of the float that is nearest to it. What was
/// written as a decimal and stored as a float is that decimal again.
double shortest_double(float number);

/// The id that `text` spells in decimal digits. Nothing for any other text, and for numbers that int64_t cannot hold.
std::optional<int64_t> parse_id(std::string_view text);

}  // namespace colossal
