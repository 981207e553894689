// The page that all reports share, with its style sheet and its script.
#pragma once
#include <string>

namespace colossal::report {

/// Returns a self-contained page, which is prevented from loading other files. `kind` is shown above the title; `body`
/// is HTML. `script` runs after the body is parsed; null = the script that shows values of render_plot() under the
/// pointer.
std::string render_page(const std::string& kind, const std::string& title, const std::string& body,
                        const char* script = nullptr);

}  // namespace colossal::report
