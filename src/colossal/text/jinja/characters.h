// Python's str operations on texts: they work on code points, with Unicode's cases and classes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal::text::jinja {

int64_t count_characters(std::string_view text);
/// Returns the size in bytes of the character that starts at byte `at`.
size_t character_length(std::string_view text, size_t at);
/// Returns the byte offset of character `index`, which must be at most the number of characters.
size_t byte_of_character(std::string_view text, int64_t index, bool is_ascii);

bool is_white(uint32_t c);      ///< str.isspace()
bool is_printable(uint32_t c);  ///< str.isprintable()
enum class Class { Alpha, Alnum, Decimal, Digit, Numeric, Lower, Upper, Title, Space, Printable, Identifier };
/// Implements the is... methods of str.
bool is_class(std::string_view text, Class asked);

/// Returns the value of a decimal digit of any script; no value for other characters.
std::optional<int> decimal_digit(uint32_t c);

/// Returns `text` without white space at the chosen ends.
std::string_view strip_white(std::string_view text, bool left, bool right);
/// Returns `text` without characters of `chars` at the chosen ends.
std::string_view strip_characters(std::string_view text, std::string_view chars, bool left, bool right);

std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string casefold(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
/// Implements str.title(): a letter after a character that is not a letter becomes a capital.
std::string title(std::string_view text);

/// Returns the byte offset of the first `part` at or after byte `from`; npos if there is none. Cost: linear time.
size_t find(std::string_view text, std::string_view part, size_t from = 0);
/// Returns the byte offset of the last `part` before byte `end`; npos if there is none. Cost: linear time.
size_t find_last(std::string_view text, std::string_view part, size_t end);
int64_t count(std::string_view text, std::string_view part);

/// Replaces & < > " ' by HTML entities, spelled as markupsafe does.
std::string escape_html(std::string_view text);

}  // namespace colossal::text::jinja
