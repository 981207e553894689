#include "colossal/serve/body_fields.h"

#include <limits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

std::string bounds_of(int64_t low, int64_t high) {
  if (high == std::numeric_limits<int64_t>::max()) return concat("a whole number, at least ", low);
  return concat("a whole number from ", low, " to ", high);
}

}  // namespace

void refuse(const std::string& param, const std::string& rule, const ordered_json& got) {
  throw http::RequestError(400, concat(param, " must be ", rule, ": got ", printable(json_line(got))), param);
}

int64_t integer_of(const ordered_json& value, const std::string& param, int64_t low, int64_t high) {
  const bool is_too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (!value.is_number_integer() || is_too_large) refuse(param, bounds_of(low, high), value);
  const auto number = value.get<int64_t>();
  if (number < low || number > high) refuse(param, bounds_of(low, high), value);
  return number;
}

BodyFields::BodyFields(const ordered_json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (object_.is_object()) return;
  if (!path_.empty()) refuse(path_, "an object", object_);
  throw http::RequestError(400, concat("the body must be an object: got ", printable(json_line(object_))));
}

const ordered_json* BodyFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string BodyFields::path_of(const char* name) const { return path_.empty() ? name : path_ + "." + name; }

std::optional<bool> BodyFields::flag(const char* name) const {
  const ordered_json* value = find(name);
  if (!value) return {};
  if (!value->is_boolean()) refuse(path_of(name), "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> BodyFields::text(const char* name) const {
  const ordered_json* value = find(name);
  if (!value) return {};
  if (!value->is_string()) refuse(path_of(name), "a text", *value);
  return value->get<std::string>();
}

std::string BodyFields::required_text(const char* name) const {
  const std::optional<std::string> value = text(name);
  if (!value) refuse(path_of(name), "a text", nullptr);
  return *value;
}

std::optional<int64_t> BodyFields::integer(const char* name, int64_t low, int64_t high) const {
  const ordered_json* value = find(name);
  if (!value) return {};
  return integer_of(*value, path_of(name), low, high);
}

std::optional<double> BodyFields::number(const char* name, double low, double high, const char* rule,
                                         bool excludes_low) const {
  const ordered_json* value = find(name);
  if (!value) return {};
  if (!value->is_number()) refuse(path_of(name), "a number", *value);
  const auto number = value->get<double>();
  if (number < low || number > high || (excludes_low && number == low)) refuse(path_of(name), rule, *value);
  return number;
}

const ordered_json* BodyFields::object(const char* name) const {
  const ordered_json* value = find(name);
  if (value && !value->is_object()) refuse(path_of(name), "an object", *value);
  return value;
}

const ordered_json* BodyFields::list(const char* name) const {
  const ordered_json* value = find(name);
  if (value && !value->is_array()) refuse(path_of(name), "a list", *value);
  return value;
}

}  // namespace colossal::serve
