#include "colossal/http/message.h"

#include <algorithm>
#include <random>

#include "colossal/base/error.h"

namespace colossal::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char small = lower(c);
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

bool may_be_in_id(char c) {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' || c == '_' || c == '.' || c == ':';
}

}  // namespace

std::string client_of(const Request& request) {
  return request.key > 0 ? concat("key ", request.key) : request.remote_address;
}

void set_target(Request& request, std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (same_name(target.substr(0, kScheme.size()), kScheme)) {
    target.remove_prefix(kScheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    for (auto& [name, value] : request.headers.fields)
      if (same_name(name, "Host")) value = target.substr(0, end);
    target.remove_prefix(end);
    if (!target.starts_with('/')) {
      request.path = "/";
      if (!target.empty()) request.query = target.substr(1);
      return;
    }
  }
  const size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  if (mark != std::string_view::npos) request.query = target.substr(mark + 1);
}

const std::string* Headers::find(std::string_view name) const {
  for (const auto& [key, value] : fields)
    if (same_name(key, name)) return &value;
  return nullptr;
}

int64_t Headers::count(std::string_view name) const {
  return std::count_if(fields.begin(), fields.end(), [&](const auto& field) { return same_name(field.first, name); });
}

const char* status_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low >= 0) i += 2;
    decoded += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
  }
  return decoded;
}

std::string request_id(const std::string* sent) {
  constexpr size_t kLongest = 64;
  std::string id;
  for (const char c : sent ? *sent : std::string()) {
    if (may_be_in_id(c) && id.size() < kLongest) id += c;
  }
  if (!id.empty()) return id;
  thread_local std::random_device random;
  for (int word = 0; word < 4; ++word) {
    uint32_t bits = random();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4) id += "0123456789abcdef"[bits & 15];
  }
  return id;
}

}  // namespace colossal::http
