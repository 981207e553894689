// The chat page of a server: one file without any other resource. serve/page.html is its source, which
// cmake/EmbedTexts.cmake makes into a .cpp file.
//
//   http::Response response{.body = std::string(serve::page_html()), .content_type = serve::kPageType};
//   response.headers.add("Content-Security-Policy", serve::page_policy());
#pragma once
#include <string_view>

namespace colossal::serve {

inline constexpr const char* kPageType = "text/html; charset=utf-8";

/// Returns the page. It is valid as long as the program runs.
std::string_view page_html();

/// Returns the value of the header Content-Security-Policy. It allows the page's own script and style, which it names
/// by their SHA-256, and requests to the page's own server, and nothing else.
const char* page_policy();

}  // namespace colossal::serve
