// An error of one request, in the form that clients of OpenAI's API read.
#pragma once
#include <stdexcept>
#include <string>

namespace colossal::serve {

/// Thrown if a request cannot be served. The client gets it as the answer, or as an event of its stream.
class ApiError : public std::runtime_error {
 public:
  /// `param` names the field at fault; "" = null. `code` is a name for programs; "" = null.
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "");

  std::string message() const { return what(); }
  int status;         ///< HTTP status
  std::string type;   ///< "invalid_request_error" below 500 (429: "rate_limit_error"), else "server_error"
  std::string param;  ///< e.g. "messages[0].content"
  std::string code;   ///< e.g. "context_length_exceeded"
};

/// Returns {"error": {"message", "type", "param", "code"}} as one line. Bytes that are not UTF-8 become U+FFFD.
std::string error_json(const ApiError& error);

}  // namespace colossal::serve
