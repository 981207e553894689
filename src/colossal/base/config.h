// Config files. TOML text and --section.key=value flags are read into structs that have fields() (base/fields.h), and
// such structs are written as TOML or as help.
//
//   auto document = ConfigDocument::load("examples/quickstart.toml");
//   document.set("--training.steps=30");
//   Config config;
//   document.read(config);                     // refuses unknown keys, wrong types, values out of range
//   write_file(folder.config(), to_toml(config));   // reads back equal
//
// Errors have the component "config". They name the place, the key, the rule and the value that was found:
//   [config] examples/x.toml:12: unknown key `paralel.tensor`, did you mean `parallel.tensor`?
//   [config] --training.steps: `training.steps` must be at least 1 (steps): got 0
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal {

/// One value of a document, before a struct gives it a type.
struct ConfigValue {
  struct Table {};
  /// A date, a time, or a list of tables, lists or dates, which no member accepts.
  struct Unsupported {
    std::string what;  ///< the kind of value, for messages
  };
  using List = std::vector<std::variant<bool, int64_t, double, std::string>>;
  std::variant<Table, Unsupported, bool, int64_t, double, std::string, List> value;
  std::string where;               ///< "examples/x.toml:12", "--training.steps", or empty = messages name no place
  std::optional<std::string> raw;  ///< text after the `=` of a flag; a text member takes it as it is written
  int64_t order = 0;               ///< position in reading order, flags after the file; of two values the later wins
};

/// The keys of a file and of the flags that override them, by dotted name. It does not depend on any struct.
class ConfigDocument {
 public:
  ConfigDocument() = default;
  /// Reads a file. Errors: the file cannot be read, is larger than 16 MiB, or is not TOML (with file:line).
  static ConfigDocument load(const std::string& path);
  /// Parses TOML text. `name` is the name of the file in messages. Errors: the text is not TOML (with name:line).
  static ConfigDocument parse(std::string_view toml, const std::string& name);

  /// Overrides the document with one flag, "--training.steps=30". The dashes are optional. Text needs no quotes; lists
  /// are written [1, 2] or 1,2. Errors: no `=`, an empty key.
  void set(const std::string& flag);

  /// Overrides the document with one typed value, as a flag does. Sets the value's `order`.
  void set(const std::string& key, ConfigValue value);

  /// Overrides one key with a value of another document.
  void put(const std::string& key, const ConfigValue& value) { values_[key] = value; }
  const std::map<std::string, ConfigValue>& values() const { return values_; }
  /// Gives the value at the key `previous`, if there is one, the key `now`. Returns whether there was one.
  bool rename(const std::string& previous, const std::string& now);

  /// Returns the value of a key as text, or nothing if the key is absent or holds a table or a list of the file. A
  /// caller chooses presets with it before read().
  std::optional<std::string> text(const std::string& key) const;

  /// Fills the members that the document names; the other members keep their values. Errors: a key that `config` does
  /// not have; a value of the wrong type, out of range or not among the choices. The earliest error of the file is
  /// reported.
  ///
  /// Returns a notice for each key that the document has under its previous name (Fields::previously):
  /// "parallel.zero_sharers is now parallel.zero_group". A key under both names is an error.
  template <class Config>
  std::vector<std::string> read(Config& config) const {
    return read_fields([&config](Fields& f) { config.fields(f); });
  }

 private:
  std::vector<std::string> read_fields(const std::function<void(Fields&)>& visit) const;
  std::map<std::string, ConfigValue> values_;
  int64_t flags_ = 0;
};

/// Calls load(), set() for each flag and read(). It drops the notices of read() about previous names.
template <class Config>
Config read_config(const std::string& path, const std::vector<std::string>& flags = {}) {
  auto document = ConfigDocument::load(path);
  for (const auto& flag : flags) document.set(flag);
  Config config;
  document.read(config);
  return config;
}

/// One key as `colossal help config` and the docs table show it.
struct KeyHelp {
  std::string section;  ///< dotted name; empty at the root
  std::string section_help;
  std::string stands_for;  ///< the key of the section that a plain value in place of the table sets; empty = none
  std::string key;         ///< dotted name, with the section
  std::string type;        ///< "integer", "one of 1d, 2d", "bytes", "list of numbers", ...
  std::string unit;
  std::string range;          ///< "1 .. 65536", ">= 0", or empty
  std::string default_value;  ///< TOML text
  std::string meaning;
  std::string previous{};  ///< its name in the previous release, without the section; empty = none
};

/// Returns the fields that `visit` visits as TOML; see to_toml().
std::string fields_to_toml(const std::function<void(Fields&)>& visit);
/// Returns the help of the fields that `visit` visits; see describe_config().
std::vector<KeyHelp> describe_fields(const std::function<void(Fields&)>& visit);

/// Returns all members of the struct as TOML, defaults included. Parsing and reading this text gives an equal struct.
template <class Config>
std::string to_toml(Config config) {
  return fields_to_toml([&config](Fields& f) { config.fields(f); });
}
/// Returns every key of the struct, section by section in order, with the values of `config` as defaults.
template <class Config>
std::vector<KeyHelp> describe_config(Config config) {
  return describe_fields([&config](Fields& f) { config.fields(f); });
}
/// Returns the keys as plain text: one paragraph for each run of keys with the same section and help of it, lines of at
/// most `width` columns.
std::string format_help(const std::vector<KeyHelp>& keys, int width = 100);
/// Returns the keys as Markdown: a heading for each section (none at the root) and a table with a row for each key.
std::string format_markdown(const std::vector<KeyHelp>& keys);
/// Returns `text` as a cell of a Markdown table: on one line, with each bar escaped.
std::string markdown_cell(const std::string& text);

}  // namespace colossal
