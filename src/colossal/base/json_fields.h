// Reads JSON objects into structs that have fields() (base/fields.h), and writes such structs, as base/config.h does
// with TOML.
//
//   infer::GenerationOptions options = defaults;
//   const auto object = parse_ordered_json(R"({"max_tokens": 5})", "the line", "generate");
//   const std::vector<std::string> given = read_json(object, options, "generate");
//   // options.max_tokens is 5, every other option is that of defaults, and given is {"max_tokens"}
//
// Files and messages of the program are written and read back:
//
//   write_file(path, json_line(to_json_object(layout)));
//   const auto again = read_stored<Layout>(read_json_object(path, "layout"), "layout");
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
///                          with Fields::section(), Fields::list() or Fields::rest() is an error, because the object
///                          must be flat.
template <class Config>
std::vector<std::string> read_json(const nlohmann::ordered_json& object, Config& config, const char* component) {
  return read_json_fields(object, [&config](Fields& f) { config.fields(f); }, component);
}

/// Calls `visit` with a visitor that sets all fields. See read_stored().
void read_stored_fields(const nlohmann::json& object, const std::function<void(Fields&)>& visit, const char* component);
void read_stored_fields(const nlohmann::ordered_json& object, const std::function<void(Fields&)>& visit,
                        const char* component);

/// Returns a struct with the members of an object that to_json_object() of this or another version wrote: sections are
/// objects, lists of structs are lists of objects. Members that the struct does not have are ignored. A member that
/// Fields::optional() allows to be missing keeps its value of a new struct. An integer may have a zero fraction, 5.0.
///
/// Errors (of `component`): those of read_json() for the values, and a missing member. The message begins with the
///                          place in the object: "roles[0].calls[2].bytes must be a number: got null". The caller adds
///                          the name of the file. A struct with Fields::rest() is an error.
template <class Config, class Json>
Config read_stored(const Json& object, const char* component) {
  Config config;
  read_stored_fields(object, [&config](Fields& f) { config.fields(f); }, component);
  return config;
}

/// Returns the fields that `visit` visits as a JSON object; see to_json_object().
nlohmann::ordered_json fields_to_json(const std::function<void(Fields&)>& visit);

/// Returns the fields of a struct as an object, in the order of the struct; read_stored() reads it. Sizes in bytes are
/// integers. Counts (Fields::count) are integers while they are whole. Numbers that are not finite become null in the
/// text. Fields::optional() leaves members out. Errors ("config"): a struct with Fields::rest().
template <class Config>
nlohmann::ordered_json to_json_object(Config config) {
  return fields_to_json([&config](Fields& f) { config.fields(f); });
}

/// Returns to_json_object() of each struct, in a list.
template <class Config>
nlohmann::ordered_json to_json_list(const std::vector<Config>& configs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Config& config : configs) list.push_back(to_json_object(config));
  return list;
}

/// Returns a value on one line, without a line end. Bytes that are not UTF-8 become U+FFFD.
std::string json_line(const nlohmann::ordered_json& value);

}  // namespace colossal
