// Byte sizes as text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal {

inline constexpr double kMiB = 1 << 20;

/// The rule of parse_bytes(), for messages.
inline constexpr char kSizeRule[] = "a size in bytes such as \"70GiB\", less than 8EiB";

/// "70GiB", "1.5 MB", "4096" as bytes; nothing if the text is not a size or does not fit 63 bits. KB to EB are powers
/// of 1000, KiB to EiB powers of 1024, in either case.
std::optional<int64_t> parse_bytes(std::string_view text);
/// The shortest exact form: "70GiB", "1000B". parse_bytes() of it gives the same number back.
std::string print_bytes(int64_t bytes);
/// For people, rounded: "1.4 GiB".
std::string readable_bytes(int64_t bytes);

}  // namespace colossal
