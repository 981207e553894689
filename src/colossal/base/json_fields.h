// Reads a JSON object into a struct that has fields() (base/fields.h), as base/config.h reads TOML.
//
//   infer::GenerationOptions options = defaults;
//   const auto object = parse_ordered_json(R"({"max_tokens": 5})", "the line", "generate");
//   const std::vector<std::string> given = read_json(object, options, "generate");
//   // options.max_tokens is 5, every other option is that of defaults, and given is {"max_tokens"}
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/base/json.h"

namespace colossal {

/// Calls `visit` with a visitor that sets the fields that `object` has members for. See read_json().
std::vector<std::string> read_json_fields(const nlohmann::ordered_json& object,
                                          const std::function<void(Fields&)>& visit, const char* component);

/// Sets each field of `config` that `object` has a member for. The other fields keep their values. Returns the names
/// of the members, in the order of the object.
///
/// A member may have the previous name of its field (Fields::previously); the returned name is the present one.
///
/// For a list of texts, the value may also be a single text. Numbers by ids are added to the numbers that `config` has.
/// A JSON field (Fields::json) accepts any JSON value and stores its text; null stores an empty text, which means none.
///
/// Errors (of `component`): `object` is not a JSON object; a member is not a field (the message has the nearest name);
///                          a value has another type or is not one of the choices; an integer is out of range.
///                          `config` may then hold some of the members. This function does not check the range of
///                          numbers that are not integers; the caller does, with the check() of the struct. A struct
///                          with Fields::section() or Fields::rest() is an error, because the object must be flat.
template <class Config>
std::vector<std::string> read_json(const nlohmann::ordered_json& object, Config& config, const char* component) {
  return read_json_fields(object, [&config](Fields& f) { config.fields(f); }, component);
}

}  // namespace colossal
