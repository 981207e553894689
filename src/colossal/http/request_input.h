// Reads the requests of one connection from its bytes, without the types of the parser's library.
//
//   RequestInput input(limits);
//   input.add(bytes);                                   // as they arrive
//   if (input.begin()) refusal = input.parse();         // up to the end of the headers, then to that of the body
//   if (input.has_header()) input.request().headers;
//   if (input.is_complete()) handle(input.take());
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "colossal/http/error_answer.h"
#include "colossal/http/limits.h"
#include "colossal/http/message.h"

namespace colossal::http {

/// The bytes of a connection that no request has used, and the request that they are a part of. Thread safety: none.
class RequestInput {
 public:
  /// `limits` must outlive the object.
  explicit RequestInput(const ServerLimits& limits);
  ~RequestInput();
  RequestInput(const RequestInput&) = delete;
  RequestInput& operator=(const RequestInput&) = delete;

  void add(std::string_view bytes);
  /// Returns the number of bytes that are not parsed yet.
  size_t held() const;
  /// Forgets the bytes that are not parsed yet.
  void drop_held();

  /// Begins a request if a byte of it has arrived. Returns false if none has; then almost no memory is held.
  bool begin();
  /// Parses the held bytes, up to the end of the headers if it is among them. Returns the answer to a request that is
  /// no HTTP or exceeds a limit.
  std::optional<ErrorAnswer> parse();
  /// Lets later calls of parse() read the body.
  void begin_body();
  /// Removes the body of a request that is refused after its headers. Returns false if a part of it is not held.
  bool skip_body();
  /// Frees the bytes of a body that no handler will get.
  void drop_body();
  /// Ends the request and returns it.
  Request take();
  /// Ends the request, if there is one. The next one begins at the held bytes.
  void end();

  // Checks of a request by its headers. Each returns the answer to one that fails.
  /// Checks the path of request(), which set_target() has set, and that the end of the body is known.
  std::optional<ErrorAnswer> check_header() const;
  /// Checks the length of the body, if the header has it.
  std::optional<ErrorAnswer> check_length() const;
  /// Returns true if the client waits with the body for "100 Continue".
  bool expects_continue() const;

  // The request that has begun. False without one.
  bool has_header() const;
  bool is_complete() const;
  bool is_http_1_0() const;
  bool keeps_alive() const;  ///< the client wants to send further requests
  bool is_head() const;      ///< the method is HEAD
  // With one:
  Request& request();
  std::string_view target() const;                 ///< as sent
  std::optional<uint64_t> content_length() const;  ///< nothing without the header

 private:
  class Parser;
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace colossal::http
