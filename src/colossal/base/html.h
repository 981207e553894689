// Text for pages and pictures.
//
//   const std::string cell = "<td>" + html_text("a < b") + "</td>";      // <td>a &lt; b</td>
#pragma once
#include <string>
#include <string_view>

namespace colossal {

/// Returns `text` for use in HTML and SVG, between tags or as the value of an attribute: markup characters are escaped;
/// control characters and bytes that are not UTF-8 become U+FFFD.
std::string html_text(std::string_view text);

}  // namespace colossal
