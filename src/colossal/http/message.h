// Requests and responses of HTTP, as handlers see them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::http {

/// The header fields of a message, in order. Names are compared without regard to case.
struct Headers {
  std::vector<std::pair<std::string, std::string>> fields{};  ///< name and value

  /// Returns the value of the first field of that name, or nullptr. Valid until the fields change.
  const std::string* find(std::string_view name) const;
  /// Returns the number of fields of that name.
  int64_t count(std::string_view name) const;
  void add(std::string name, std::string value) { fields.emplace_back(std::move(name), std::move(value)); }
};

/// A request whose headers and body have arrived.
struct Request {
  std::string method;  ///< "GET", "POST", ...; the handler of a GET route also gets its "HEAD" requests
  std::string path;    ///< the target up to `?`, as sent
  std::string query;   ///< the target after `?`, as sent; "" = none
  std::string rest;    ///< the part of the path that the wildcard matches, with %XX decoded; "" without a wildcard
  Headers headers;
  std::string body;
  std::string remote_address;  ///< IP address of the client, without the port
  std::string id;              ///< the client's X-Request-Id, or a random one
  uint64_t number = 0;         ///< unique in this server; numbers of later requests are larger
  int64_t key = 0;             ///< number of the client's key, from 1 (Keys::number_of); 0 = no key was needed
};

/// A complete answer. The server adds Content-Length, X-Request-Id and Connection.
struct Response {
  int status = 200;
  std::string body{};
  std::string content_type = "application/json";
  Headers headers{};
};

/// Returns the name of a request's client, for turns: the number of its key or, without keys, its remote address.
std::string client_of(const Request& request);

/// Sets path and query from the target of a request. The host of a target in absolute form, as clients send it to
/// proxies (http://localhost:8000/health), replaces that of the Host header.
void set_target(Request& request, std::string_view target);

/// Returns the phrase of a status: "Not Found" for 404, "Status" for one that this library does not send.
const char* status_phrase(int status);

/// Returns true if the names are equal without regard to the case of ASCII letters.
bool same_name(std::string_view a, std::string_view b);

/// Returns the text with each %XX replaced by its byte. A `%` that no two hexadecimal digits follow is kept.
std::string percent_decoded(std::string_view text);

/// Returns the client's X-Request-Id with only letters, digits and "-_.:" kept, at most 64 of them. If none is left
/// or `sent` is nullptr, it returns 32 random hexadecimal digits.
std::string request_id(const std::string* sent);

}  // namespace colossal::http
