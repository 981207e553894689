#include "colossal/http/error_answer.h"

#include <string_view>

#include "colossal/base/json.h"

namespace colossal::http {

std::string without_folders(const std::string& message) {
  constexpr std::string_view kBefore = " \t\n\"'`(<[{=,:;";
  constexpr std::string_view kAfter = " \t\n\"'`)>]},;";
  std::string out;
  for (size_t at = 0; at < message.size();) {
    const std::string_view rest = std::string_view(message).substr(at);
    const bool is_start = out.empty() || kBefore.find(out.back()) != std::string_view::npos;
    const bool is_absolute = rest.starts_with('/') && !rest.starts_with("//");  // not that of a URL
    const bool is_path = is_absolute || rest.starts_with("~/") || rest.starts_with("./") || rest.starts_with("../");
    const std::string_view path = rest.substr(0, rest.find_first_of(kAfter));
    if (!is_start || !is_path || path.size() < 2) {
      out += message[at++];
      continue;
    }
    out += path.substr(path.find_last_of('/', path.size() - 2) + 1);
    at += path.size();
  }
  return out;
}

std::string error_json(const ErrorAnswer& error) {
  using Json = nlohmann::ordered_json;
  const char* type = error.status == 429   ? "rate_limit_error"
                     : error.status >= 500 ? "server_error"
                                           : "invalid_request_error";
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json answer = {{"error",
                        {{"message", error.status >= 500 ? without_folders(error.message) : error.message},
                         {"type", type},
                         {"param", or_null(error.param)},
                         {"code", or_null(error.code)}}}};
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Response error_response(const ErrorAnswer& error) {
  Response response{.status = error.status, .body = error_json(error)};
  if (error.status == 429 || error.status == 503) response.headers.add("Retry-After", "1");
  if (error.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace colossal::http
