#include "colossal/http/error_answer.h"

#include "colossal/base/json.h"

namespace colossal::http {

std::string error_json(const ErrorAnswer& error) {
  using Json = nlohmann::ordered_json;
  const char* type = error.status == 429   ? "rate_limit_error"
                     : error.status >= 500 ? "server_error"
                                           : "invalid_request_error";
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json answer = {
      {"error",
       {{"message", error.message}, {"type", type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}}}};
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Response error_response(const ErrorAnswer& error) {
  Response response{.status = error.status, .body = error_json(error)};
  if (error.status == 429 || error.status == 503) response.headers.add("Retry-After", "1");
  if (error.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace colossal::http
