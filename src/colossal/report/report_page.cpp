#include "colossal/report/report_page.h"

#include "colossal/base/error.h"
#include "colossal/base/html.h"

namespace colossal::report {

std::string render_page(const std::string& kind, const std::string& title, const std::string& body,
                        std::string_view script) {
  return concat(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width,initial-scale=1'><meta http-equiv='Content-Security-Policy' "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\"><title>",
      html_text(title), "</title>\n<style>\n", page_style(), "</style></head><body>\n<header><span>", html_text(kind),
      "</span><h1>", html_text(title), "</h1></header>\n<main>", body, "</main>\n<script>", script.empty() ? "" : "\n",
      script, "</script></body></html>\n");
}

}  // namespace colossal::report
