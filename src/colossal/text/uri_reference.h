// References between URIs (RFC 3986).
#pragma once
#include <string>

namespace colossal::text {

/// `reference` resolved against the absolute URI `base`; without a fragment of the base.
std::string resolved_uri(const std::string& base, const std::string& reference);
/// With the bytes that %XX stands for.
std::string percent_decoded(const std::string& text);

}  // namespace colossal::text
