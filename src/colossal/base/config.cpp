#include "colossal/base/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxDots = 100;
constexpr int kDeepest = 30;
constexpr int64_t kFirstFlag = std::numeric_limits<int64_t>::max() / 2;  // above the order of every line of a file

std::optional<std::variant<bool, int64_t, double, std::string>> scalar_of(const toml::node& node) {
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* text = node.as_string()) return text->get();
  return std::nullopt;
}

decltype(ConfigValue::value) value_of(const toml::node& node) {
  if (node.is_table()) return ConfigValue::Table{};
  if (const auto* array = node.as_array()) {
    ConfigValue::List list;
    for (const auto& element : *array) {
      auto scalar = scalar_of(element);
      if (!scalar)
        return ConfigValue::Unsupported{element.is_table() ? "a list of tables" : "a list of lists or dates"};
      list.push_back(std::move(*scalar));
    }
    return list;
  }
  if (auto scalar = scalar_of(node)) {
    return std::visit([](auto& value) -> decltype(ConfigValue::value) { return std::move(value); }, *scalar);
  }
  return ConfigValue::Unsupported{"a date or time"};
}

/// Returns the index after the TOML string whose opening quote is at `i`.
size_t behind_string(std::string_view text, size_t i) {
  const char quote = text[i];
  const std::string_view three = quote == '"' ? "\"\"\"" : "'''";
  const bool has_lines = text.substr(i, 3) == three;
  for (i += has_lines ? 3 : 1; i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (!has_lines && (text[i] == quote || text[i] == '\n')) {
      return i + (text[i] == quote ? 1 : 0);
    } else if (has_lines && text.substr(i, 3) == three) {
      i += 3;
      for (int last = 0; last < 2 && i < text.size() && text[i] == quote; ++last) ++i;  // quotes that end its text
      return i;
    }
  }
  return text.size();
}

/// Returns the line of the first key with more than kMaxDots dots, if there is one. The check is needed because the
/// TOML library bounds how deep values nest, but recurses for each table that a dotted key opens. Dots within quotes
/// open no table. Where this function reads a quote differently from the library, the library has already stopped at an
/// error before that quote.
std::optional<int64_t> line_of_deep_key(std::string_view text) {
  constexpr std::string_view kNoKeyGoesOnBehind = "=,[]{}\n";
  int64_t dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '.' && ++dots > kMaxDots) return 1 + std::count(text.begin(), text.begin() + i, '\n');
    if (kNoKeyGoesOnBehind.find(c) != std::string_view::npos) dots = 0;
    if (c == '"' || c == '\'')
      i = behind_string(text, i);
    else
      i = c == '#' ? std::min(text.find('\n', i), text.size()) : i + 1;
  }
  return std::nullopt;
}

/// Calls `add(dotted key, node)` for the node and for every node below it.
template <class Add>
void walk(const std::string& key, const toml::node& node, const Add& add, int depth = 0) {
  if (!key.empty()) add(key, node);
  const auto* table = node.as_table();
  if (table == nullptr) return;
  require(depth <= kDeepest, "config", "`", key.substr(0, 60), "`: tables are nested more than ", kDeepest, " deep");
  for (const auto& [name, child] : *table) {
    walk(key.empty() ? std::string(name.str()) : concat(key, ".", name.str()), child, add, depth + 1);
  }
}

}  // namespace

ConfigDocument ConfigDocument::load(const std::string& path) {
  try {
    return parse(read_file(path, kMaxConfigBytes), path);
  } catch (const Error& error) {
    if (error.component() != "file") throw;
    throw Error("config", std::string(error.what()).substr(std::string("[file] ").size()));
  }
}

ConfigDocument ConfigDocument::parse(std::string_view toml, const std::string& name) {
  const std::optional<int64_t> line = line_of_deep_key(toml);
  require(!line, "config", name, ":", line.value_or(0), ": a key must have at most ", kMaxDots, " dots");
  ConfigDocument document;
  try {
    const toml::table root = toml::parse(toml, std::string_view(name));
    walk("", root, [&](const std::string& key, const toml::node& node) {
      const auto begin = node.source().begin;
      const int64_t order = (int64_t{begin.line} << 24) + std::min<int64_t>(begin.column, (1 << 24) - 1);
      document.values_[key] = {value_of(node), concat(name, ":", begin.line), std::nullopt, order};
    });
  } catch (const toml::parse_error& error) {
    throw Error("config", concat(name, ":", error.source().begin.line, ": not valid TOML: ", error.description()));
  }
  return document;
}

bool ConfigDocument::rename(const std::string& previous, const std::string& now) {
  auto entry = values_.extract(previous);
  if (entry.empty()) return false;
  entry.key() = now;
  values_.insert(std::move(entry));
  return true;
}

void ConfigDocument::set(const std::string& flag) {
  const std::string assignment = flag.substr(flag.compare(0, 2, "--") == 0 ? 2 : 0);
  const auto equals = assignment.find('=');
  require(equals != std::string::npos, "config", "`", flag, "` has no value: write --section.key=value");
  const std::string key = assignment.substr(0, equals), raw = assignment.substr(equals + 1);
  require(!key.empty(), "config", "`", flag, "` names no key: write --section.key=value");
  const std::string where = "--" + key;
  const int64_t order = kFirstFlag + ++flags_;
  ConfigValue text{raw, where, raw, order};
  try {
    const toml::table parsed = toml::parse(line_of_deep_key(raw) ? "" : "v = " + raw);
    if (parsed.size() == 1 && parsed.begin()->first.str() == "v") {
      walk(key, parsed.begin()->second, [&](const std::string& name, const toml::node& node) {
        values_[name] = {value_of(node), where, name == key ? std::optional(raw) : std::nullopt, order};
      });
      return;
    }
  } catch (const toml::parse_error&) {  // the value is plain text, such as runs/quickstart
  }
  values_[key] = std::move(text);
}

void ConfigDocument::set(const std::string& key, ConfigValue value) {
  value.order = kFirstFlag + ++flags_;
  values_[key] = std::move(value);
}

std::optional<std::string> ConfigDocument::text(const std::string& key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  const ConfigValue& entry = found->second;
  if (const auto* text = std::get_if<std::string>(&entry.value)) return *text;
  if (entry.raw) return entry.raw;
  if (const auto* integer = std::get_if<int64_t>(&entry.value)) return concat(*integer);
  if (const auto* number = std::get_if<double>(&entry.value)) return concat(*number);
  if (const auto* flag = std::get_if<bool>(&entry.value)) return *flag ? "true" : "false";
  return std::nullopt;
}

}  // namespace colossal
