// The visitor that fills a struct from a ConfigDocument, and all errors that it reports.
#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/number.h"
#include "colossal/base/suggest.h"

namespace colossal {
namespace {

struct FoundText {  // describes a value of the document for an error message
  std::string operator()(const ConfigValue::Table&) const { return "a table"; }
  std::string operator()(const ConfigValue::Unsupported& other) const { return other.what; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const { return concat(value); }
  std::string operator()(double value) const { return "the number " + print_number(value); }
  std::string operator()(const std::string& value) const {
    constexpr size_t kMaxQuote = 80;
    return "\"" + (value.size() > kMaxQuote ? value.substr(0, kMaxQuote) + "..." : value) + "\"";
  }
  std::string operator()(const ConfigValue::List& list) const { return concat("a list of ", list.size()); }
};

/// Returns the range in words: "at least 1 (steps)". The bounds of byte sizes are printed as sizes.
std::string range_words(const Field& field, bool integral) {
  const auto word = [&](double number_bound, int64_t integer_bound) {
    if (!integral) return print_number(number_bound);
    return field.is_bytes ? print_bytes(integer_bound) : concat(integer_bound);
  };
  const bool bounded_below = integral ? field.min != std::numeric_limits<int64_t>::min() : field.low != -kInfinity;
  const bool bounded_above = integral ? field.max != kMaxInteger : field.high != kInfinity;
  const std::string low = word(field.low, field.min), high = word(field.high, field.max);
  std::string words = bounded_below && bounded_above ? "between " + low + " and " + high
                      : bounded_below                ? "at least " + low
                                                     : "at most " + high;
  if (*field.unit != '\0') words += concat(" (", field.unit, ")");
  return words;
}

/// Returns the elements of a flag's value, `1,2` or `1`, as the scalars that a file would hold.
ConfigValue::List split_flag(const std::string& raw) {
  ConfigValue::List list;
  std::istringstream parts(raw);
  for (std::string part; std::getline(parts, part, ',');) {
    int64_t integer = 0;
    double number = 0;
    const char* end = part.data() + part.size();
    if (auto done = std::from_chars(part.data(), end, integer); done.ec == std::errc() && done.ptr == end) {
      list.emplace_back(integer);
    } else if (done = std::from_chars(part.data(), end, number); done.ec == std::errc() && done.ptr == end) {
      list.emplace_back(number);
    } else {
      list.emplace_back(part);
    }
  }
  return list;
}

class Reader : public Fields {
 public:
  explicit Reader(const std::map<std::string, ConfigValue>& values) : values_(values) {}

  /// Throws the earliest error of the document, if there is one. The caller calls it after the visit.
  void finish() {
    for (const auto& [key, entry] : values_) {
      if (used_.count(key) || std::holds_alternative<ConfigValue::Table>(entry.value)) continue;
      complain(entry, concat("unknown key `", key, "`", suggestion(key)));
    }
    for (const auto& [key, entry] : values_) {  // the keys of an unknown table are reported above; here an empty table
      const auto next = values_.upper_bound(key);
      const bool empty = next == values_.end() || next->first.compare(0, key.size() + 1, key + ".") != 0;
      if (!used_.count(key) && empty) complain(entry, concat("unknown section `", key, "`", suggestion(key)));
    }
    if (!complaint_.empty()) throw Error("config", complaint_);
  }
  const std::vector<std::string>& renamed() const { return renamed_; }

 private:
  struct Section {
    std::string key;  // "" = the root
    std::string stands_for;
  };

  void visit(const Field& field) override {
    const Section& section = sections_.back();
    const std::string key = key_of(field.name);
    known_.push_back(key);
    const ConfigValue* entry = find(key);
    if (*field.previous != '\0') entry = newer(key_of(field.previous), key, entry);
    if (auto* const* numbers = std::get_if<std::map<int64_t, double>*>(&field.value)) read_below(field, key, **numbers);
    if (section.stands_for == field.name) {
      const ConfigValue* short_form = find(section.key);
      const bool is_table = short_form != nullptr && std::holds_alternative<ConfigValue::Table>(short_form->value);
      if (short_form != nullptr && !is_table && (entry == nullptr || short_form->order > entry->order))
        entry = short_form;
    }
    if (entry != nullptr) std::visit([&](auto* target) { read(field, key, *entry, *target); }, field.value);
    hint_at(field, key);
  }

  /// Names this key in the complaint about a value that stands in place of its section, if the key may have the value:
  /// `--precision=bf16` is about `precision.mode`.
  void hint_at(const Field& field, const std::string& key) {
    const auto plain = values_.find(sections_.back().key);
    if (plain == values_.end() || complaint_.empty() || complaint_order_ != plain->second.order) return;
    const auto* text = std::get_if<std::string>(&plain->second.value);
    if (text == nullptr || std::find(field.choices.begin(), field.choices.end(), *text) == field.choices.end()) return;
    complaint_ += concat("; did you mean `", key, "`?");
  }

  /// Returns the value of a renamed key, which the document may have under either name.
  const ConfigValue* newer(const std::string& previous, const std::string& key, const ConfigValue* entry) {
    const ConfigValue* before = find(previous);
    if (before == nullptr) return entry;
    renamed_.push_back(concat(previous, " is now ", key));
    if (entry == nullptr) return before;
    complain(*before, concat("`", previous, "` is now `", key, "`, and both are given: leave out `", previous, "`"));
    return entry;
  }

  void visit_rest(ConfigDocument& keys) override {
    const std::string section = sections_.back().key + ".";
    const bool is_root = sections_.size() == 1;
    for (const auto& [key, entry] : values_)
      if ((is_root ? is_of_another_table(key, entry) : key.starts_with(section)) && used_.insert(key).second)
        keys.put(key, entry);
  }

  /// Returns true for a table that no call has named, and for each key in it.
  bool is_of_another_table(const std::string& key, const ConfigValue& entry) const {
    const std::string table = key.substr(0, key.find('.'));
    const bool is_in_table = table.size() < key.size() || std::holds_alternative<ConfigValue::Table>(entry.value);
    return is_in_table && std::find(known_.begin(), known_.end(), table) == known_.end();
  }

  void enter(const char* name, const char*, const char* stands_for) override {
    const std::string key = key_of(name);
    known_.push_back(key);
    const ConfigValue* entry = find(key);
    if (entry != nullptr && *stands_for == '\0' && !std::holds_alternative<ConfigValue::Table>(entry->value)) {
      complain(*entry, concat("`", key, "` must be a table ([", key, "] and keys below it): got ", found(*entry)));
    }
    sections_.push_back({key, stands_for});
  }
  void leave() override { sections_.pop_back(); }

  std::string key_of(const char* name) const {
    return sections_.back().key.empty() ? name : sections_.back().key + "." + name;
  }
  const ConfigValue* find(const std::string& key) {
    const auto entry = values_.find(key);
    if (entry == values_.end()) return nullptr;
    used_.insert(key);
    return &entry->second;
  }
  static std::string found(const ConfigValue& entry) { return std::visit(FoundText(), entry.value); }

  void complain(const ConfigValue& entry, const std::string& what) {
    if (!complaint_.empty() && complaint_order_ <= entry.order) return;
    complaint_ = entry.where.empty() ? what : concat(entry.where, ": ", what);
    complaint_order_ = entry.order;
  }
  void wrong_type(const std::string& key, const ConfigValue& entry, const char* wanted) {
    complain(entry, concat("`", key, "` must be ", wanted, ": got ", found(entry)));
  }

  std::string suggestion(const std::string& key) const {
    const std::string near = did_you_mean_key(key, known_);
    if (!near.empty()) return near;
    return "; `colossal help config` lists them all";
  }

  void read(const Field&, const std::string& key, const ConfigValue& entry, bool& target) {
    if (const auto* value = std::get_if<bool>(&entry.value)) {
      target = *value;
    } else {
      wrong_type(key, entry, "true or false");
    }
  }

  void read(const Field& field, const std::string& key, const ConfigValue& entry, int64_t& target) {
    std::optional<int64_t> value;
    if (const auto* integer = std::get_if<int64_t>(&entry.value)) value = *integer;
    const auto* text = std::get_if<std::string>(&entry.value);
    if (field.is_bytes && text != nullptr) value = parse_bytes(*text);
    if (!value) return wrong_type(key, entry, field.is_bytes ? kSizeRule : "an integer");
    const bool is_off = field.can_be_off && *value == -1;
    if (!is_off && (*value < field.min || *value > field.max)) {
      return complain(entry, concat("`", key, "` must be ", range_words(field, true), ": got ", found(entry)));
    }
    target = *value;
  }

  void read(const Field& field, const std::string& key, const ConfigValue& entry, double& target) {
    std::optional<double> value;
    if (const auto* integer = std::get_if<int64_t>(&entry.value)) value = static_cast<double>(*integer);
    if (const auto* number = std::get_if<double>(&entry.value)) value = *number;
    if (!value) return wrong_type(key, entry, "a number");
    if (!(*value >= field.low && *value <= field.high)) {  // this form of the test refuses NaN, too
      return complain(entry, concat("`", key, "` must be ", range_words(field, false), ": got ", found(entry)));
    }
    target = *value;
  }

  void read(const Field& field, const std::string& key, const ConfigValue& entry, std::string& target) {
    if (field.takes_numbers && reads_number(field, key, entry, target)) return;
    const std::vector<std::string>& known = field.choices;
    const auto* text = std::get_if<std::string>(&entry.value);
    const auto* flag = std::get_if<bool>(&entry.value);
    if (flag != nullptr && std::find(known.begin(), known.end(), "true") == known.end()) flag = nullptr;
    if (text == nullptr && flag == nullptr && !entry.raw) return wrong_type(key, entry, "text in quotes");
    const std::string value = flag != nullptr ? FoundText()(*flag) : text != nullptr ? *text : *entry.raw;
    if (!known.empty() && std::find(known.begin(), known.end(), value) == known.end()) {
      const std::string hint = did_you_mean(value, known);
      return complain(entry, concat("`", key, "` must be one of ", join(known), ": got ", FoundText()(value), hint));
    }
    target = value;
  }

  /// Reads the number that a text may be. Returns false for another text.
  bool reads_number(const Field& field, const std::string& key, const ConfigValue& entry, std::string& target) {
    ConfigValue value = entry;
    if (const auto* text = std::get_if<std::string>(&entry.value)) {
      const ConfigValue::List parts = split_flag(*text);
      if (parts.size() != 1 || std::holds_alternative<std::string>(parts.front())) return false;
      std::visit([&](const auto& part) { value.value = part; }, parts.front());
    }
    double number = 0;
    if (!std::holds_alternative<int64_t>(value.value) && !std::holds_alternative<double>(value.value)) return false;
    const std::string before = complaint_;
    read(field, key, value, number);
    if (complaint_ == before) target = print_number(number);
    return true;
  }

  void read(const Field&, const std::string& key, const ConfigValue& entry, std::map<int64_t, double>&) {
    const bool is_table = std::holds_alternative<ConfigValue::Table>(entry.value);
    if (!is_table) wrong_type(key, entry, "a table of numbers by ids such as {7 = 0.5}");
  }

  /// Reads the numbers of a table. The document holds each of them under its own key.
  void read_below(const Field& field, const std::string& key, std::map<int64_t, double>& target) {
    const std::string table = key + ".";
    for (auto at = values_.lower_bound(table); at != values_.end() && at->first.starts_with(table); ++at) {
      used_.insert(at->first);
      const std::string name = at->first.substr(table.size());
      if (const std::optional<int64_t> id = parse_id(name))
        read(field, at->first, at->second, target[*id]);
      else
        complain(at->second, concat("`", key, "` must have numbers by their ids: got ", name));
    }
  }

  template <class Element>
  void read(const Field& field, const std::string& key, const ConfigValue& entry, std::vector<Element>& target) {
    const auto* list = std::get_if<ConfigValue::List>(&entry.value);
    if (list == nullptr && !entry.raw) return wrong_type(key, entry, "a list such as [1, 2]");
    std::vector<Element> elements;
    int position = 0;
    for (const auto& scalar : list != nullptr ? *list : split_flag(*entry.raw)) {
      ConfigValue one{{}, entry.where, std::nullopt, entry.order};
      std::visit([&](const auto& value) { one.value = value; }, scalar);
      Element element{};
      read(field, concat(key, "[", position++, "]"), one, element);
      elements.push_back(std::move(element));
    }
    target = std::move(elements);
  }

  const std::map<std::string, ConfigValue>& values_;
  std::vector<Section> sections_{{"", ""}};
  std::vector<std::string> known_;
  std::set<std::string> used_;
  std::vector<std::string> renamed_;
  std::string complaint_;
  int64_t complaint_order_ = 0;
};

}  // namespace

std::vector<std::string> ConfigDocument::read_fields(const std::function<void(Fields&)>& visit) const {
  Reader reader(values_);
  visit(reader);
  reader.finish();
  return reader.renamed();
}

}  // namespace colossal
