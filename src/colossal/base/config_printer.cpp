// The visitors that write a config struct: as TOML and as help.
#include <cctype>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/number.h"

namespace colossal {
namespace {

std::string toml_of(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    char code[8];
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7F) {
      std::snprintf(code, sizeof(code), "\\u%04X", byte);
      quoted += code;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string toml_of(double number) {
  const std::string printed = print_number(number);
  const bool is_float = printed.find_first_of(".en") != std::string::npos;  // n: inf, nan
  return is_float ? printed : printed + ".0";
}

std::string toml_of(bool value) { return value ? "true" : "false"; }
std::string toml_of(int64_t value) { return std::to_string(value); }

template <class Element>
std::string toml_of(const std::vector<Element>& list) {
  std::string text = "[";
  for (const auto& element : list) text += (text.size() > 1 ? ", " : "") + toml_of(element);
  return text + "]";
}

std::string toml_of(const std::map<int64_t, double>& numbers) {
  std::string text = "{";
  for (const auto& [id, number] : numbers) text += concat(text.size() > 1 ? ", " : "", id, " = ", toml_of(number));
  return text + "}";
}

std::string toml_of(const Field& field) {
  if (field.is_bytes) return toml_of(print_bytes(*std::get<int64_t*>(field.value)));
  return std::visit([](const auto* value) { return toml_of(*value); }, field.value);
}

struct TomlOfValue {
  std::string operator()(const ConfigValue::Table&) const { return ""; }
  std::string operator()(const ConfigValue::Unsupported&) const { return ""; }  // its reader reports the error
  std::string operator()(const ConfigValue::List& list) const {
    std::string text = "[";
    for (const auto& element : list) {
      text += text.size() > 1 ? ", " : "";
      text += std::visit([](const auto& value) { return toml_of(value); }, element);
    }
    return text + "]";
  }
  template <class Value>
  std::string operator()(const Value& value) const {
    return toml_of(value);
  }
};

/// A visitor that records the sections it has entered, in order, and the section that it is in.
class Printer : public Fields {
 protected:
  struct Section {
    std::string key, help, stands_for;
  };
  void enter(const char* name, const char* help, const char* stands_for) override {
    open_.push_back(sections_.size());
    sections_.push_back({key_of(name, open_.end()[-2]), help, stands_for});
  }
  void leave() override { open_.pop_back(); }

  /// Calls visit() in each table of `keys`, as if the table were a section. The caller must be at the root.
  template <class Visit>
  void each_table(const ConfigDocument& keys, const Visit& visit) {
    std::set<std::string> tables;
    for (const auto& [key, entry] : keys.values()) tables.insert(key.substr(0, key.find('.')));
    for (const std::string& table : tables) {
      enter(table.c_str(), "", "");
      visit();
      leave();
    }
  }

  /// Calls `write(name within the section, TOML)` for each value of `keys` in the current section.
  template <class Write>
  void each_of_rest(const ConfigDocument& keys, const Write& write) const {
    const std::string section = sections_[current()].key + ".";
    for (const auto& [key, entry] : keys.values())
      if (const std::string toml = std::visit(TomlOfValue(), entry.value); key.starts_with(section) && !toml.empty())
        write(key.substr(section.size()), toml);
  }

  const std::vector<Section>& sections() const { return sections_; }
  size_t current() const { return open_.back(); }
  bool is_at_root() const { return open_.size() == 1; }
  std::string key_of(const char* name) const { return key_of(name, current()); }

 private:
  std::string key_of(const char* name, size_t section) const {
    return sections_[section].key.empty() ? name : sections_[section].key + "." + name;
  }
  std::vector<Section> sections_{{"", "", ""}};  // the root is first: its keys have no header, so they precede headers
  std::vector<size_t> open_{0};
};

class TomlPrinter : public Printer {
 public:
  std::string text() const {
    std::string all;
    for (const auto& [section, lines] : lines_) {
      if (section != 0) all += (all.empty() ? "[" : "\n[") + sections()[section].key + "]\n";
      all += lines;
    }
    return all;
  }

 private:
  // Lines are gathered by section, because a key after the header of a sub-table would belong to the sub-table.
  void visit(const Field& field) override { lines_[current()] += concat(field.name, " = ", toml_of(field), "\n"); }
  void visit_rest(ConfigDocument& keys) override {
    if (is_at_root()) return each_table(keys, [&] { visit_rest(keys); });
    lines_[current()];  // creates the entry, because a table without keys has a header, too
    each_of_rest(keys, [&](const std::string& name, const std::string& toml) {
      lines_[current()] += concat(name, " = ", toml, "\n");
    });
  }
  std::map<size_t, std::string> lines_;
};

struct TypeName {
  std::string operator()(const bool*) const { return "true or false"; }
  std::string operator()(const int64_t*) const { return "integer"; }
  std::string operator()(const double*) const { return "number"; }
  std::string operator()(const std::string*) const { return "text"; }
  std::string operator()(const std::vector<int64_t>*) const { return "list of integers"; }
  std::string operator()(const std::vector<double>*) const { return "list of numbers"; }
  std::string operator()(const std::vector<std::string>*) const { return "list of texts"; }
  std::string operator()(const std::map<int64_t, double>*) const { return "numbers by id"; }
};

std::string type_of(const Field& field) {
  if (field.is_bytes) return "bytes";
  if (field.is_json) return "JSON";
  const std::string choices = "one of " + join(field.choices);
  if (field.takes_numbers) return choices + ", or a number";
  return field.choices.empty() ? std::visit(TypeName(), field.value) : choices;
}

std::string range_of(const Field& field) {
  std::string low, high;
  if (field.min != std::numeric_limits<int64_t>::min()) low = concat(field.min);
  if (field.max != kMaxInteger) high = concat(field.max);
  if (field.is_bytes && !low.empty()) low = print_bytes(field.min);
  if (field.is_bytes && !high.empty()) high = print_bytes(field.max);
  if (field.low != -kInfinity) low = print_number(field.low);
  if (field.high != kInfinity) high = print_number(field.high);
  if (low.empty() && high.empty()) return "";
  const std::string range = high.empty() ? ">= " + low : low.empty() ? "<= " + high : low + " .. " + high;
  return field.can_be_off ? range + ", or -1 = off" : range;
}

class Describer : public Printer {
 public:
  std::vector<KeyHelp> keys() const {
    std::vector<KeyHelp> all;
    for (const auto& [section, keys] : keys_) all.insert(all.end(), keys.begin(), keys.end());
    return all;
  }

 private:
  void visit(const Field& field) override {
    const Section& section = sections()[current()];
    keys_[current()].push_back({section.key, section.help, section.stands_for, key_of(field.name), type_of(field),
                                field.unit, range_of(field), toml_of(field), field.help, field.previous});
  }
  void visit_rest(ConfigDocument& keys) override {
    if (is_at_root()) return each_table(keys, [&] { visit_rest(keys); });
    const Section& section = sections()[current()];
    each_of_rest(keys, [&](const std::string& name, const std::string& toml) {
      keys_[current()].push_back(
          {section.key, section.help, section.stands_for, key_of(name.c_str()), "", "", "", toml, ""});
    });
  }
  std::map<size_t, std::vector<KeyHelp>> keys_;
};

/// Appends the words of `text` in lines of at most `width` columns, each indented by `indent` blanks.
void append_wrapped(std::string& out, const std::string& text, int indent, int width) {
  std::istringstream words(text);
  std::string line(static_cast<size_t>(indent), ' ');
  bool empty = true;
  for (std::string word; words >> word; empty = false) {
    if (!empty && static_cast<int>(line.size() + 1 + word.size()) > width) {
      out += line + "\n";
      line.assign(static_cast<size_t>(indent), ' ');
      empty = true;
    }
    line += (empty ? "" : " ") + word;
  }
  out += line + "\n";
}

std::string about_section(const KeyHelp& key) {
  if (key.stands_for.empty()) return key.section_help;
  return concat(key.section_help, " (a plain value instead of the table sets its `", key.stands_for, "`)");
}

std::string name_in_section(const KeyHelp& key) {
  return key.key.substr(key.section.empty() ? 0 : key.section.size() + 1);
}

/// Returns the type, unit and range of a key as text.
std::string value_of(const KeyHelp& key) {
  std::string value = key.type;
  if (!key.unit.empty()) value += ", " + key.unit;
  if (!key.range.empty()) value += ", " + key.range;
  return value;
}

}  // namespace

std::string fields_to_toml(const std::function<void(Fields&)>& visit) {
  TomlPrinter printer;
  visit(printer);
  return printer.text();
}

std::vector<KeyHelp> describe_fields(const std::function<void(Fields&)>& visit) {
  Describer describer;
  visit(describer);
  return describer.keys();
}

std::string format_help(const std::vector<KeyHelp>& keys, int width) {
  std::string out;
  const KeyHelp* before = nullptr;
  for (const auto& key : keys) {
    if (!before || before->section != key.section || before->section_help != key.section_help) {
      if (!key.section.empty()) {
        out += (out.empty() ? "[" : "\n[") + key.section + "]\n";
        const std::string about = about_section(key);
        if (!about.empty()) append_wrapped(out, about, 2, width);
      }
    }
    before = &key;
    out += concat("  ", name_in_section(key), " = ", key.default_value, "\n");
    append_wrapped(out, concat(key.meaning, " [", value_of(key), "]"), 6, width);
  }
  return out;
}

std::string markdown_cell(const std::string& text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|') cell += '\\';
    cell += c == '\n' ? ' ' : c;
  }
  return cell;
}

std::string format_markdown(const std::vector<KeyHelp>& keys) {
  std::string out;
  const std::string* section = nullptr;
  for (const auto& key : keys) {
    if (section == nullptr || *section != key.section) {
      section = &key.section;
      if (!key.section.empty()) out += concat("\n## `[", key.section, "]`\n");
      std::string about = about_section(key);
      if (!about.empty()) {
        about[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(about[0])));
        out += "\n" + about + ".\n";
      }
      out += "\n| key | default | value | meaning |\n|---|---|---|---|\n";
    }
    out += concat("| `", name_in_section(key), "` | `", markdown_cell(key.default_value), "` | ",
                  markdown_cell(value_of(key)), " | ", markdown_cell(key.meaning), " |\n");
  }
  return out;
}

}  // namespace colossal
