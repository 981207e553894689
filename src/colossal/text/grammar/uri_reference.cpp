#include "colossal/text/grammar/uri_reference.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace colossal::text {
namespace {

/// scheme ":" ["//" authority] path ["?" query] ["#" fragment]; each part includes its delimiter, absent parts are
/// empty.
struct UriParts {
  std::string scheme, authority, path, query, fragment;
};

UriParts parts_of_uri(std::string text) {
  UriParts parts;
  const auto cut_from = [&text](size_t at) {
    const std::string rest = at < text.size() ? text.substr(at) : "";
    text.resize(std::min(at, text.size()));
    return rest;
  };
  parts.fragment = cut_from(text.find('#'));
  parts.query = cut_from(text.find('?'));
  const size_t colon = text.find(':');
  if (colon != std::string::npos && colon > 0 && colon < text.find('/') &&
      std::isalpha(static_cast<unsigned char>(text[0]))) {
    parts.scheme = text.substr(0, colon + 1);
    text.erase(0, colon + 1);
  }
  if (text.starts_with("//")) {
    parts.path = cut_from(std::min(text.find('/', 2), text.size()));
    parts.authority = text;
  } else {
    parts.path = text;
  }
  return parts;
}

/// Returns the path with its segments "." and ".." resolved.
std::string without_dots(const std::string& path) {
  std::vector<std::string> kept;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin + 1), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_last = end == path.size();
    if (part == "/.." || part == "/.") {
      if (part == "/.." && !kept.empty()) kept.pop_back();
      if (is_last) kept.push_back("/");
    } else {
      kept.push_back(part);
    }
    begin = end;
  }
  std::string joined;
  for (const std::string& part : kept) joined += part;
  return joined;
}

}  // namespace

std::string resolved_uri(const std::string& base, const std::string& reference) {
  const UriParts from = parts_of_uri(base);
  UriParts to = parts_of_uri(reference);
  if (!to.scheme.empty()) return to.scheme + to.authority + without_dots(to.path) + to.query + to.fragment;
  to.scheme = from.scheme;
  if (to.authority.empty()) {
    to.authority = from.authority;
    if (to.path.empty()) {
      to.path = from.path;
      if (to.query.empty()) to.query = from.query;
    } else if (to.path[0] != '/') {
      const size_t slash = from.path.rfind('/');
      to.path = (slash == std::string::npos ? "/" : from.path.substr(0, slash + 1)) + to.path;
    }
  }
  return to.scheme + to.authority + without_dots(to.path) + to.query + to.fragment;
}

std::string percent_decoded(const std::string& text) {
  const auto is_digit = [&](size_t i) { return i < text.size() && std::isxdigit(static_cast<unsigned char>(text[i])); };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && is_digit(i + 1) && is_digit(i + 2)) {
      decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace colossal::text
