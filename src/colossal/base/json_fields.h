// Reads a JSON object into a struct that has fields() (base/fields.h), as base/config.h reads TOML.
//
//   infer::GenerationOptions options = defaults;
//   const auto object = parse_ordered_json(R"({"max_tokens": 5})", "the line", "generate");
//   const std::vector<std::string> given = read_json(object, options, "generate");
//   // options.max_tokens is 5, every other option is that of defaults, and given is {"max_tokens"}
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal {

/// Visits the fields and sets those that `object` has. See read_json().
std::vector<std::string> read_json_fields(const nlohmann::ordered_json& object,
                                          const std::function<void(Fields&)>& visit, const char* component);

/// Sets each field of `config` that `object` has a member for. The other fields keep their values. Returns the names
/// of the members, in the order of the object.
///
/// A list of texts may also be one text. Numbers by ids are added to those that `config` has. A field of JSON
/// (Fields::json) takes any value as its text, and null as none.
///
/// Errors (of `component`): an `object` that is no object, a member that is no field (with the nearest name), a value
///                          of another type, an integer out of range. `config` may then hold a part of the members.
///                          Ranges of numbers that are no integers are left to the check() of the struct. Sections
///                          and the rest of a section are refused: the object must be flat.
template <class Config>
std::vector<std::string> read_json(const nlohmann::ordered_json& object, Config& config, const char* component) {
  return read_json_fields(
      object, [&config](Fields& f) { config.fields(f); }, component);
}

}  // namespace colossal
