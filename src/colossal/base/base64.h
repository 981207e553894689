// Bytes as text of letters, digits, + and / (RFC 4648, section 4).
//
//   base64("hello");      // "aGVsbG8="
#pragma once
#include <string>
#include <string_view>

namespace colossal {

/// Returns the bytes as base64, with `=` up to a multiple of four characters.
std::string base64(std::string_view bytes);

}  // namespace colossal
