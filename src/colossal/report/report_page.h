// The frame of every report: its style sheet and its script.
#pragma once
#include <string>

namespace colossal::report {

/// A whole page that needs nothing else, and is kept from loading anything. `kind` is shown above the title; `body` is
/// HTML already. `script` runs after the body is read; null: the one that shows values of render_plot() under the
/// pointer.
std::string render_page(const std::string& kind, const std::string& title, const std::string& body,
                        const char* script = nullptr);

}  // namespace colossal::report
