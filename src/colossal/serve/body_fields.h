// Reads the members of a JSON object of a request, with the messages that clients get.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/http/error_answer.h"

namespace colossal::serve {

/// Throws http::RequestError 400: "PARAM must be RULE: got VALUE".
[[noreturn]] void refuse(const std::string& param, const std::string& rule, const nlohmann::ordered_json& got);

/// Returns work(). An Error that it throws is one of the request: http::RequestError 400 with `param`, without paths.
template <class Work>
auto as_bad_request(const std::string& param, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw http::RequestError(400, http::without_folders(error.message()), param);
  }
}

/// The members of one object. A member that is null counts as missing. `path` is the object's own place in the body;
/// "" = the body. `object` must outlive it. Errors: http::RequestError 400 with the member's path.
class BodyFields {
 public:
  explicit BodyFields(const nlohmann::ordered_json& object, std::string path = "");

  /// Returns the member, or nullptr if it is missing.
  const nlohmann::ordered_json* find(const char* name) const;
  std::string path_of(const char* name) const;

  /// Return the member, or nothing if it is missing.
  std::optional<bool> flag(const char* name) const;
  std::optional<std::string> text(const char* name) const;
  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high) const;
  /// `rule` describes the bounds, e.g. "at least 0". `excludes_low` = `low` itself is out of range.
  std::optional<double> number(const char* name, double low, double high, const char* rule,
                               bool excludes_low = false) const;
  const nlohmann::ordered_json* object(const char* name) const;
  const nlohmann::ordered_json* list(const char* name) const;
  /// Returns a text that must not be missing.
  std::string required_text(const char* name) const;

 private:
  const nlohmann::ordered_json& object_;
  std::string path_;
};

/// Returns an integer of [low, high]. Errors: http::RequestError 400 with `param`.
int64_t integer_of(const nlohmann::ordered_json& value, const std::string& param, int64_t low, int64_t high);

}  // namespace colossal::serve
