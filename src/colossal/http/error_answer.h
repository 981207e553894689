// Errors in the form that clients of OpenAI's API read:
//
//   {"error": {"message": "temperature must be a number: got \"hot\"", "type": "invalid_request_error",
//              "param": "temperature", "code": null}}
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

#include "colossal/http/message.h"

namespace colossal::http {

/// An error of a request, as its client reads it.
struct ErrorAnswer {
  int status = 400;
  std::string message{};
  std::string param{};  ///< the field of the request that is at fault; "" = null
  std::string code{};   ///< a name for programs, such as "context_length_exceeded"; "" = null
};

/// Returns the message without the folders of the server: each path keeps its last part. A path begins with `/`, `~/`,
/// `./` or `../` after white space or punctuation.
std::string without_folders(const std::string& message);

/// Returns the error as one line of JSON, for the body of an answer or an event of a stream. The type follows from the
/// status: "rate_limit_error" for 429, "server_error" from 500, else "invalid_request_error". Bytes of the message that
/// are not UTF-8 are replaced. Messages from 500 on, which the client's input does not explain, are without_folders().
std::string error_json(const ErrorAnswer& error);

/// Returns error_json() with its status. 429 and 503 get the header `Retry-After: 1`, 401 gets `WWW-Authenticate`.
Response error_response(const ErrorAnswer& error);

/// Thrown by a handler: the server answers the request with error_response().
class RequestError : public std::runtime_error {
 public:
  explicit RequestError(ErrorAnswer answer) : std::runtime_error(answer.message), answer_(std::move(answer)) {}
  /// The arguments are the members of ErrorAnswer.
  RequestError(int status, std::string message, std::string param = "", std::string code = "")
      : RequestError(ErrorAnswer{status, std::move(message), std::move(param), std::move(code)}) {}
  const ErrorAnswer& answer() const { return answer_; }

 private:
  ErrorAnswer answer_;
};

}  // namespace colossal::http
