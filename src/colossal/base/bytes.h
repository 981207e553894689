// Byte sizes as text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal {

inline constexpr double kMiB = 1 << 20;

/// The rule that parse_bytes() checks, for messages.
inline constexpr char kSizeRule[] = "a size in bytes such as \"70GiB\", less than 8EiB";

/// Returns the number of bytes that "70GiB", "1.5 MB" or "4096" means. Returns nothing if the text is not a size or the
/// number does not fit 63 bits. KB to EB are powers of 1000, KiB to EiB powers of 1024, in upper or lower case.
std::optional<int64_t> parse_bytes(std::string_view text);
/// Returns the shortest exact form: "70GiB", "1000B". parse_bytes() of this text returns the same number.
std::string print_bytes(int64_t bytes);
/// Returns a rounded form for people: "1.4 GiB".
std::string readable_bytes(int64_t bytes);
/// Returns readable_bytes() rounded up, for a size of which no less suffices.
std::string readable_at_least(int64_t bytes);

}  // namespace colossal
