#include "colossal/base/fields.h"

#include <utility>

#include "colossal/base/error.h"

namespace colossal {

Fields& Fields::previously(const char* name) {
  previous_ = name;
  return *this;
}

Fields& Fields::optional(bool is_left_out) {
  presence_ = is_left_out ? Presence::LeftOut : Presence::Optional;
  return *this;
}

void Fields::show(Field field) {
  field.previous = std::exchange(previous_, "");
  field.presence = std::exchange(presence_, Presence::Always);
  visit(field);
}

void Fields::flag(const char* name, bool& value, const char* help) {
  show({.name = name, .value = &value, .help = help});
}

void Fields::integer(const char* name, int64_t& value, const char* unit, const char* help, int64_t min, int64_t max) {
  show({.name = name, .value = &value, .unit = unit, .help = help, .min = min, .max = max});
}

void Fields::number(const char* name, double& value, const char* unit, const char* help, double low, double high) {
  show({.name = name, .value = &value, .unit = unit, .help = help, .low = low, .high = high});
}

void Fields::text(const char* name, std::string& value, const char* help) {
  show({.name = name, .value = &value, .help = help});
}

void Fields::choice(const char* name, std::string& value, std::vector<std::string> choices, const char* help) {
  show({.name = name, .value = &value, .help = help, .choices = std::move(choices)});
}

void Fields::number_or_word(const char* name, std::string& value, std::vector<std::string> words, const char* help,
                            double low) {
  show({.name = name, .value = &value, .help = help, .low = low, .choices = std::move(words), .takes_numbers = true});
}

void Fields::bytes(const char* name, int64_t& value, const char* help, int64_t min, int64_t max) {
  show({.name = name, .value = &value, .help = help, .min = min, .max = max, .is_bytes = true});
}

void Fields::integers(const char* name, std::vector<int64_t>& value, const char* unit, const char* help, int64_t min,
                      int64_t max) {
  show({.name = name, .value = &value, .unit = unit, .help = help, .min = min, .max = max});
}

void Fields::numbers(const char* name, std::vector<double>& value, const char* unit, const char* help, double low,
                     double high) {
  show({.name = name, .value = &value, .unit = unit, .help = help, .low = low, .high = high});
}

void Fields::texts(const char* name, std::vector<std::string>& value, const char* help) {
  show({.name = name, .value = &value, .help = help});
}

void Fields::integer_or_off(const char* name, int64_t& value, const char* unit, const char* help, int64_t min) {
  show({.name = name, .value = &value, .unit = unit, .help = help, .min = min, .can_be_off = true});
}

void Fields::numbers_by_id(const char* name, std::map<int64_t, double>& value, const char* help, double low,
                           double high) {
  show({.name = name, .value = &value, .help = help, .low = low, .high = high});
}

void Fields::json(const char* name, std::string& value, const char* help) {
  show({.name = name, .value = &value, .help = help, .is_json = true});
}

void Fields::count(const char* name, double& value) { show({.name = name, .value = &value, .is_count = true}); }

size_t Fields::enter_list(const char* name, size_t) {
  throw Error("config", concat("a list of structs must be in JSON: got `", name, "`"));
}

bool Fields::has(const char* name, bool) {
  throw Error("config", concat("a value that may be missing must be in JSON: got `", name, "`"));
}

void Fields::rest(ConfigDocument& keys) { visit_rest(keys); }

}  // namespace colossal
