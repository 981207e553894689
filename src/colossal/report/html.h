#pragma once
#include <string>

namespace colossal::report {

/// Text for HTML: markup characters escaped; bytes that are not UTF-8 and control characters replaced by U+FFFD.
std::string html_text(const std::string& text);

}  // namespace colossal::report
