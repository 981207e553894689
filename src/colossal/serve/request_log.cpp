#include "colossal/serve/request_log.h"

#include <cstdio>

#include "colossal/base/error.h"

namespace colossal::serve {
namespace {

std::string plain(std::string text) {
  for (char& c : text)
    if (c <= ' ' || c > '~') c = '?';
  return text.empty() ? "-" : text;
}

std::string milliseconds_of(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", seconds);
  return text;
}

}  // namespace

std::string log_line(const RequestRecord& record) {
  const std::string first =
      record.first_token_seconds ? "first after " + milliseconds_of(*record.first_token_seconds) : "no first";
  return concat("request ", plain(record.id), " ", plain(record.route), " key ",
                record.key > 0 ? std::to_string(record.key) : "-", " status ", record.status, ": ",
                record.prompt_tokens, " prompt tokens (", record.found_tokens, " found), ", record.answer_tokens,
                " answer tokens, ", first, ", ", milliseconds_of(record.seconds), ", ", plain(record.reason));
}

}  // namespace colossal::serve
