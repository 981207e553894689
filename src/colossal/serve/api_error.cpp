#include "colossal/serve/api_error.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace colossal::serve {
namespace {

const char* error_type(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code)
    : std::runtime_error(message),
      status(status),
      type(error_type(status)),
      param(std::move(param)),
      code(std::move(code)) {}

std::string error_json(const ApiError& error) {
  using nlohmann::ordered_json;
  const auto text_or_null = [](const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); };
  const ordered_json json = {{"error",
                              {{"message", error.message()},
                               {"type", error.type},
                               {"param", text_or_null(error.param)},
                               {"code", text_or_null(error.code)}}}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace colossal::serve
