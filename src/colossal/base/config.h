// Config files: TOML text and --section.key=value flags read into structs that have fields() (base/fields.h), and back
//               to text.
//
//   auto document = ConfigDocument::load("examples/quickstart.toml");
//   document.set("--training.steps=30");
//   Config config;
//   document.read(config);                     // refuses unknown keys, wrong types, values out of range
//   write_file(folder.config(), to_toml(config));   // reads back equal
//
// Errors are of component "config" and name place, key, what is wanted and what was found:
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

/// One value of a document before it meets the struct that gives it a type.
struct ConfigValue {
  struct Table {};
  struct Unsupported {
    std::string what;
  };  // dates, nested lists
  using List = std::vector<std::variant<bool, int64_t, double, std::string>>;
  std::variant<Table, Unsupported, bool, int64_t, double, std::string, List> value;
  std::string where;               // "examples/x.toml:12" or "--training.steps"
  std::optional<std::string> raw;  // the text behind `=` of a flag: what a text member takes, whatever it looks like
  int64_t order = 0;               // of reading, flags behind the file; where two say the same thing the later wins
};

/// The keys of a file and of the flags laid over it, by dotted name. Knows nothing of any struct.
class ConfigDocument {
 public:
  ConfigDocument() = default;
  /// Errors: the file cannot be read, is larger than 16 MiB, or is not TOML (with file:line).
  static ConfigDocument load(const std::string& path);
  static ConfigDocument parse(std::string_view toml, const std::string& name);

  /// Lays one flag over the document: "--training.steps=30" (the dashes may be left out). Text needs no quotes;
  /// lists are written [1, 2] or 1,2. Errors: no `=`, an empty key.
  void set(const std::string& flag);

  /// Lays one value over the document, as another one holds it.
  void put(const std::string& key, const ConfigValue& value) { values_[key] = value; }
  const std::map<std::string, ConfigValue>& values() const { return values_; }

  /// What stands at a key, as text, if anything does: to pick presets before the whole is read.
  std::optional<std::string> text(const std::string& key) const;

  /// Fills the members that the document names; the others keep their value. Errors: any key that `config` does not
  /// have, a value of the wrong type, out of range or not among the choices; the earliest of the file is reported.
  template <class Config>
  void read(Config& config) const {
    read_fields([&config](Fields& f) { config.fields(f); });
  }

 private:
  void read_fields(const std::function<void(Fields&)>& visit) const;
  std::map<std::string, ConfigValue> values_;
  int64_t flags_ = 0;
};

/// load + set + read in one go.
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
  std::string section;  // dotted; empty at the root
  std::string section_help;
  std::string stands_for;  // of the section: the key that a plain value in place of the table sets
  std::string key;         // dotted, whole
  std::string type;        // "integer", "one of 1d, 2d", "bytes", "list of numbers", ...
  std::string unit;
  std::string range;          // "1 .. 65536", ">= 0", or empty
  std::string default_value;  // as TOML
  std::string meaning;
};

std::string fields_to_toml(const std::function<void(Fields&)>& visit);
std::vector<KeyHelp> describe_fields(const std::function<void(Fields&)>& visit);

/// The whole struct as TOML, defaults included; parse + read of it gives an equal struct.
template <class Config>
std::string to_toml(Config config) {
  return fields_to_toml([&config](Fields& f) { config.fields(f); });
}
/// Every key of the struct, section by section in order, with the values of `config` as defaults.
template <class Config>
std::vector<KeyHelp> describe_config(Config config) {
  return describe_fields([&config](Fields& f) { config.fields(f); });
}
/// The keys as readable text, a paragraph a section, lines of at most `width` columns.
std::string format_help(const std::vector<KeyHelp>& keys, int width = 100);
/// The keys as Markdown: a heading for each section (none at the root) and a table with a row for each key.
std::string format_markdown(const std::vector<KeyHelp>& keys);
/// `text` as it must stand in a cell of a Markdown table: in one line, with each bar escaped.
std::string markdown_cell(const std::string& text);

}  // namespace colossal
