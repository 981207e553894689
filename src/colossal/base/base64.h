// Bytes as text of letters, digits, + and / (RFC 4648, section 4).
//
//   base64("hello");               // "aGVsbG8="
//   *from_base64("aGVsbG8=");      // "hello"
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace colossal {

/// Returns the bytes as base64, with `=` up to a multiple of four characters.
std::string base64(std::string_view bytes);

/// Returns the bytes of a text of base64(); nothing if it is not one.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace colossal
