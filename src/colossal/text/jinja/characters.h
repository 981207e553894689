// Texts as Python's str sees them: by code points, with Unicode's cases and classes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal::text::jinja {

int64_t count_characters(std::string_view text);
/// The bytes of the character that begins at byte `at`.
size_t character_length(std::string_view text, size_t at);
/// The byte at which character `index` begins, which is at most their number.
size_t byte_of_character(std::string_view text, int64_t index, bool is_ascii);

bool is_white(uint32_t c);      ///< str.isspace()
bool is_printable(uint32_t c);  ///< str.isprintable()
enum class Class { Alpha, Alnum, Decimal, Digit, Numeric, Lower, Upper, Title, Space, Printable, Identifier };
/// The is... methods of str.
bool is_class(std::string_view text, Class asked);

/// What a decimal digit of any script stands for.
std::optional<int> decimal_digit(uint32_t c);

/// The part of `text` without white space at its ends.
std::string_view strip_white(std::string_view text, bool left, bool right);
/// Without characters that are in `chars` at its ends.
std::string_view strip_characters(std::string_view text, std::string_view chars, bool left, bool right);

std::string lower(std::string_view text);
std::string upper(std::string_view text);
std::string casefold(std::string_view text);
std::string capitalize(std::string_view text);
std::string swap_case(std::string_view text);
/// str.title(): after what is no letter comes a capital.
std::string title(std::string_view text);

/// Where `part` begins in `text`, from byte `from` on; npos where it does not. In linear time.
size_t find(std::string_view text, std::string_view part, size_t from = 0);
/// The last place of it before byte `end`. In linear time.
size_t find_last(std::string_view text, std::string_view part, size_t end);
int64_t count(std::string_view text, std::string_view part);

/// & < > " ' as HTML's entities, as markupsafe writes them.
std::string escape_html(std::string_view text);

}  // namespace colossal::text::jinja
