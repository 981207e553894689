// The frame of every report: its style sheet and the script that shows values under the pointer.
#pragma once
#include <string>

namespace colossal::report {

/// A whole page that needs nothing else. `kind` stands over the title; `body` is HTML already.
std::string render_page(const std::string& kind, const std::string& title, const std::string& body);

}  // namespace colossal::report
