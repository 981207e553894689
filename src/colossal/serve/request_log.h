// The log of a server: one line per request, without texts and keys.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace colossal::serve {

struct RequestRecord {
  std::string id{};
  std::string route{};  ///< path of the route; "" = none was found
  int64_t key = 0;      ///< number of the key; 0 = none
  int status = 0;       ///< 0 = the client left before the answer
  int64_t prompt_tokens = 0, found_tokens = 0, answer_tokens = 0;
  std::optional<double> first_token_seconds{};  ///< none = no token
  double seconds = 0;
  std::string reason{};  ///< why the answer ended: "stop", "length", "left", ...; "" = "-"
};

/// Returns one line without a line break:
///
///   request 3f2a /v1/completions key 1 status 200: 12 prompt tokens (8 found), 40 answer tokens, first after 0.021 s,
///   0.310 s, stop
///
/// Characters of the id, the route and the reason that are not printable ASCII, and blanks, become `?`.
std::string log_line(const RequestRecord& record);

}  // namespace colossal::serve
