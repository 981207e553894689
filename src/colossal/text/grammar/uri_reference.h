// References between URIs (RFC 3986).
#pragma once
#include <string>

namespace colossal::text {

/// Returns `reference` resolved against the absolute URI `base`, without the fragment of `base`.
std::string resolved_uri(const std::string& base, const std::string& reference);
/// Returns `text` with each %XX replaced by the byte that it encodes.
std::string percent_decoded(const std::string& text);

}  // namespace colossal::text
