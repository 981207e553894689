#pragma once
#include <string>

namespace colossal::report {

/// Returns `text` for use in HTML: markup characters are escaped; control characters and bytes that are not UTF-8
/// become U+FFFD.
std::string html_text(const std::string& text);

}  // namespace colossal::report
