#include "colossal/base/json_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/base/suggest.h"

namespace colossal {
namespace {

using nlohmann::ordered_json;

constexpr double kExactIntegers = 9007199254740992;  // 2^53
constexpr auto kMaxUnsigned = static_cast<uint64_t>(kMaxInteger);

bool is_exact_integer(double value) { return value == std::floor(value) && std::abs(value) <= kExactIntegers; }

template <class Json>
std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Returns true if a text is a number of at least `low`.
bool is_number_from(const std::string& text, double low) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [last, failed] = std::from_chars(text.data(), end, number);
  return failed == std::errc() && last == end && std::isfinite(number) && number >= low;
}

/// Returns the start of a value as text, for messages.
template <class Json>
std::string found(const Json& value) {
  constexpr size_t kMaxShownBytes = 80;
  const std::string text = dumped(value);
  return text.size() > kMaxShownBytes ? text.substr(0, kMaxShownBytes) + "..." : text;
}

/// Reads the values of fields, and names them in messages.
template <class Json>
class ValueReader : public Fields {
 protected:
  explicit ValueReader(const char* component) : component_(component) {}

  const char* component() const { return component_; }
  /// Returns what stands before the name of a field in messages: "roles[0]."
  virtual std::string place() const { return ""; }
  virtual bool accepts_zero_fractions() const { return false; }

  void expect(bool is_right, const char* name, const char* wanted, const Json& value) const {
    if (!is_right) throw Error(component_, concat(place(), name, " must be ", wanted, ": got ", found(value)));
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Field& field, const Parts&... parts) const {
    throw Error(component_, concat(place(), field.name, parts...));
  }

  void read(const Field& field, const Json& value, bool& target) const {
    expect(value.is_boolean(), field.name, "true or false", value);
    target = value.template get<bool>();
  }

  void read(const Field& field, const Json& value, int64_t& target) const {
    const auto size =
        field.is_bytes && value.is_string() ? parse_bytes(value.template get<std::string>()) : std::nullopt;
    bool is_whole =
        value.is_number_integer() && (!value.is_number_unsigned() || value.template get<uint64_t>() <= kMaxUnsigned);
    if (accepts_zero_fractions() && value.is_number_float()) is_whole = is_exact_integer(value.template get<double>());
    expect(size || is_whole, field.name, field.is_bytes ? kSizeRule : "a whole number", value);
    const int64_t number = size ? *size : value.template get<int64_t>();
    const bool is_off = field.can_be_off && number == -1;
    if (field.min == 0 && number < 0 && !is_off) refuse(field, " must not be negative: got ", number);
    if (number < field.min && !is_off) refuse(field, " must be at least ", field.min, ": got ", number);
    if (number > field.max) refuse(field, " must be at most ", field.max, ": got ", number);
    target = number;
  }

  void read(const Field& field, const Json& value, double& target) const {
    expect(value.is_number(), field.name, "a number", value);
    target = value.template get<double>();
  }

  void read(const Field& field, const Json& value, std::string& target) const {
    if (field.is_json) {
      target = value.is_null() ? "" : value.dump();
      return;
    }
    const bool is_number = field.takes_numbers && value.is_number();
    expect(value.is_string() || is_number, field.name, "a string", value);
    const std::string text = is_number ? value.dump() : value.template get<std::string>();
    const std::vector<std::string>& known = field.choices;
    const bool is_choice = known.empty() || std::find(known.begin(), known.end(), text) != known.end() ||
                           (field.takes_numbers && is_number_from(text, field.low));
    expect(is_choice, field.name, ("one of " + join(known) + (field.takes_numbers ? ", or a number" : "")).c_str(),
           value);
    target = text;
  }

  template <class Element>
  void read(const Field& field, const Json& value, std::vector<Element>& target) const {
    const bool is_alone = std::is_same_v<Element, std::string> && !value.is_array();
    expect(value.is_array() || is_alone, field.name, "a list", value);
    std::vector<Element> elements;
    if (is_alone)
      read(field, value, elements.emplace_back());
    else
      for (const Json& element : value) read(field, element, elements.emplace_back());
    target = std::move(elements);
  }

  void read(const Field& field, const Json& value, std::map<int64_t, double>& target) const {
    expect(value.is_object(), field.name, "an object", value);
    for (const auto& [name, number] : value.items()) {
      const std::optional<int64_t> id = parse_id(name);
      if (!id) refuse(field, " must have numbers by their ids: got ", name);
      read(field, number, target[*id]);
    }
  }

 private:
  const char* component_;
};

class JsonReader : public ValueReader<ordered_json> {
 public:
  JsonReader(const ordered_json& object, const char* component) : ValueReader(component), object_(object) {
    require(object.is_object(), component, "options must be a JSON object: got ", found(object));
  }

  /// Returns the names of all members. Call it after the visit.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& member : object_.items()) {
      if (const auto renamed = renamed_.find(member.key()); renamed != renamed_.end()) {
        names.push_back(renamed->second);
        continue;
      }
      const bool is_known = std::find(known_.begin(), known_.end(), member.key()) != known_.end();
      require(is_known, component(), "unknown option ", member.key(), did_you_mean(member.key(), known_));
      names.push_back(member.key());
    }
    return names;
  }

 private:
  void visit(const Field& field) override {
    known_.emplace_back(field.name);
    auto member = object_.find(field.name);
    if (const auto before = *field.previous ? object_.find(field.previous) : object_.end(); before != object_.end()) {
      require(member == object_.end(), component(), field.previous, " is now ", field.name,
              ", and both are given: leave out ", field.previous);
      renamed_[field.previous] = field.name;
      member = before;
    }
    if (member == object_.end()) return;
    std::visit([&](auto* target) { read(field, *member, *target); }, field.value);
  }
  void visit_rest(ConfigDocument&) override { refuse_sections(); }
  void enter(const char*, const char*, const char*) override { refuse_sections(); }
  void leave() override {}
  size_t enter_list(const char*, size_t size) override {
    refuse_sections();
    return size;
  }
  bool has(const char*, bool has_value) override {
    refuse_sections();
    return has_value;
  }
  void refuse_sections() const { throw Error(component(), "options in JSON must be flat: got a struct with sections"); }

  const ordered_json& object_;
  std::vector<std::string> known_;
  std::map<std::string, std::string> renamed_;  // previous names that the object has, and the present ones
};

/// Reads sections and lists, too. An object that an optional member lacks is null here: all members keep their values.
template <class Json>
class StoredReader : public ValueReader<Json> {
 public:
  StoredReader(const Json& object, const char* component) : ValueReader<Json>(component), open_{{&object, "", -1}} {
    require(object.is_object(), component, "must be a JSON object: got ", found(object));
  }

 private:
  struct Level {
    const Json* value;
    const char* name;
    int64_t index;  // in the list of the level before; -1 = no item
  };

  bool accepts_zero_fractions() const override { return true; }

  std::string place() const override {
    std::string text;
    for (const Level& level : open_) {
      if (level.index >= 0) text += concat("[", level.index, "]");
      if (*level.name) text += concat(text.empty() ? "" : ".", level.name);
    }
    return text.empty() ? "" : text + ".";
  }

  /// Returns a member of the object; nullptr if it may be missing and is.
  const Json* member(const char* name, const char* previous, Presence presence) const {
    const Json* object = open_.back().value;
    if (!object) return nullptr;
    auto at = object->find(name);
    if (at == object->end() && *previous) at = object->find(previous);
    if (at != object->end()) return &*at;
    if (presence == Presence::Always) throw Error(this->component(), concat(place(), name, " is missing"));
    return nullptr;
  }

  void visit(const Field& field) override {
    const Json* value = member(field.name, field.previous, field.presence);
    if (value) std::visit([&](auto* target) { this->read(field, *value, *target); }, field.value);
  }
  void visit_rest(ConfigDocument&) override { throw Error(this->component(), "stored JSON has no further keys"); }
  void enter(const char* name, const char*, const char*) override {
    const Json* value = member(name, "", this->presence());
    if (value) this->expect(value->is_object(), name, "an object", *value);
    open_.push_back({value, name, -1});
  }
  size_t enter_list(const char* name, size_t size) override {
    const Json* value = member(name, "", this->presence());
    if (value) this->expect(value->is_array(), name, "a list", *value);
    open_.push_back({value, name, -1});
    return value ? value->size() : size;
  }
  bool has(const char* name, bool has_value) override {
    const Json* value = member(name, "", this->presence());
    return value ? !value->is_null() : has_value;
  }
  void enter_item(size_t index) override {
    const Json* list = open_.back().value;
    const Json* value = list ? &(*list)[index] : nullptr;
    open_.push_back({value, "", static_cast<int64_t>(index)});
    if (!value || value->is_object()) return;
    const std::string item = place();
    throw Error(this->component(), concat(item.substr(0, item.size() - 1), " must be an object: got ", found(*value)));
  }
  void leave() override { open_.pop_back(); }

  std::vector<Level> open_;
};

class JsonWriter : public Fields {
 public:
  ordered_json take() { return std::move(open_.front().value); }

 private:
  struct Level {
    ordered_json value;
    const char* name;  // "" = an item of a list
    bool is_left_out;
  };

  static ordered_json value_of(const Field&, const std::map<int64_t, double>& numbers) {
    ordered_json object = ordered_json::object();
    for (const auto& [id, number] : numbers) object[std::to_string(id)] = number;
    return object;
  }
  static ordered_json value_of(const Field& field, const std::string& text) {
    if (!field.is_json) return text;
    return text.empty() ? ordered_json() : parse_ordered_json(text, field.name, "config");
  }
  static ordered_json value_of(const Field& field, double number) {
    if (field.is_count && is_exact_integer(number)) return static_cast<int64_t>(number);
    return number;
  }
  template <class Value>
  static ordered_json value_of(const Field&, const Value& value) {
    return value;
  }

  void visit(const Field& field) override {
    if (field.presence == Presence::LeftOut) return;
    open_.back().value[field.name] =
        std::visit([&](const auto* value) { return value_of(field, *value); }, field.value);
  }
  void visit_rest(ConfigDocument&) override { throw Error("config", "stored JSON has no further keys"); }
  void enter(const char* name, const char*, const char*) override {
    open_.push_back({ordered_json::object(), name, presence() == Presence::LeftOut});
  }
  size_t enter_list(const char* name, size_t size) override {
    open_.push_back({ordered_json::array(), name, presence() == Presence::LeftOut});
    return size;
  }
  bool has(const char* name, bool has_value) override {
    if (!has_value && presence() != Presence::LeftOut) open_.back().value[name] = nullptr;
    return has_value;
  }
  void enter_item(size_t) override { open_.push_back({ordered_json::object(), "", false}); }
  void leave() override {
    Level level = std::move(open_.back());
    open_.pop_back();
    ordered_json& around = open_.back().value;
    if (level.is_left_out) return;
    if (around.is_array())
      around.push_back(std::move(level.value));
    else
      around[level.name] = std::move(level.value);
  }

  std::vector<Level> open_{{ordered_json::object(), "", false}};
};

}  // namespace

std::vector<std::string> read_json_fields(const ordered_json& object, const std::function<void(Fields&)>& visit,
                                          const char* component) {
  JsonReader reader(object, component);
  visit(reader);
  return reader.names();
}

void read_stored_fields(const nlohmann::json& object, const std::function<void(Fields&)>& visit,
                        const char* component) {
  StoredReader<nlohmann::json> reader(object, component);
  visit(reader);
}

void read_stored_fields(const ordered_json& object, const std::function<void(Fields&)>& visit, const char* component) {
  StoredReader<ordered_json> reader(object, component);
  visit(reader);
}

ordered_json fields_to_json(const std::function<void(Fields&)>& visit) {
  JsonWriter writer;
  visit(writer);
  return writer.take();
}

std::string json_line(const ordered_json& value) { return dumped(value); }

}  // namespace colossal
