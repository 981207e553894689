// A blocking client of HTTP/1.1, for load tests and tests.
//
//   Client client({.url = "http://127.0.0.1:8000", .key = "..."});
//   const Reply reply = client.post("/v1/completions", body, [](std::string_view line, Client::Time when) {
//     return true;                             // a line of a stream of events; false ends the reading
//   });
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "colossal/http/message.h"

namespace colossal::http {

struct ClientOptions {
  std::string url;       ///< http://HOST[:PORT][/PREFIX]; paths of requests are appended to the prefix
  std::string key{};     ///< sent as `Authorization: Bearer KEY`; "" = none
  double timeout = 600;  ///< seconds that the server may be silent
};

struct Reply {
  int status = 0;
  Headers headers{};
  std::string body{};       ///< empty if lines were given to the caller
  bool is_complete = true;  ///< false: the stream broke off, or the caller ended the reading
};

/// One connection, which is kept alive between requests and opened again if the server has closed it.
/// Thread safety: one thread at a time.
/// Errors ("http"): the URL is not of that form; the server cannot be reached; it closes the connection before the
/// headers of its answer; it is silent for longer than the timeout; its answer is not HTTP.
class Client {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Called with each line of a stream of events, without its line break, and the time at which it arrived. Returning
  /// false ends the reading and closes the connection.
  using OnLine = std::function<bool(std::string_view line, Time when)>;

  explicit Client(ClientOptions options);
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  Reply get(const std::string& path);
  /// Posts JSON. If `on_line` is set and the answer is a stream of events, its lines go there; any other answer is
  /// returned as the body.
  Reply post(const std::string& path, const std::string& json, const OnLine& on_line = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace colossal::http
