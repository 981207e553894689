#include "colossal/base/json_fields.h"

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/base/suggest.h"

namespace colossal {
namespace {

using nlohmann::ordered_json;

class JsonReader : public Fields {
 public:
  JsonReader(const ordered_json& object, const char* component) : object_(object), component_(component) {
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
      require(is_known, component_, "unknown option ", member.key(), did_you_mean(member.key(), known_));
      names.push_back(member.key());
    }
    return names;
  }

 private:
  void visit(const Field& field) override {
    known_.emplace_back(field.name);
    auto member = object_.find(field.name);
    if (const auto before = *field.previous ? object_.find(field.previous) : object_.end(); before != object_.end()) {
      require(member == object_.end(), component_, field.previous, " is now ", field.name,
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
  void refuse_sections() const { throw Error(component_, "options in JSON must be flat: got a struct with sections"); }

  /// Returns the start of a value as text, for messages.
  static std::string found(const ordered_json& value) {
    constexpr size_t kMaxShownBytes = 80;
    const std::string text = value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    return text.size() > kMaxShownBytes ? text.substr(0, kMaxShownBytes) + "..." : text;
  }
  void expect(bool is_right, const Field& field, const char* wanted, const ordered_json& value) const {
    require(is_right, component_, field.name, " must be ", wanted, ": got ", found(value));
  }

  void read(const Field& field, const ordered_json& value, bool& target) const {
    expect(value.is_boolean(), field, "true or false", value);
    target = value.get<bool>();
  }

  void read(const Field& field, const ordered_json& value, int64_t& target) const {
    const auto size = field.is_bytes && value.is_string() ? parse_bytes(value.get<std::string>()) : std::nullopt;
    const bool is_whole =
        value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= kMaxUnsigned);
    expect(size || is_whole, field, field.is_bytes ? kSizeRule : "a whole number", value);
    const int64_t number = size ? *size : value.get<int64_t>();
    const bool is_off = field.can_be_off && number == -1;
    if (field.min == 0) require(is_off || number >= 0, component_, field.name, " must not be negative: got ", number);
    require(is_off || number >= field.min, component_, field.name, " must be at least ", field.min, ": got ", number);
    require(number <= field.max, component_, field.name, " must be at most ", field.max, ": got ", number);
    target = number;
  }

  void read(const Field& field, const ordered_json& value, double& target) const {
    expect(value.is_number(), field, "a number", value);
    target = value.get<double>();
  }

  void read(const Field& field, const ordered_json& value, std::string& target) const {
    if (field.is_json) {
      target = value.is_null() ? "" : value.dump();
      return;
    }
    expect(value.is_string(), field, "a string", value);
    const std::string text = value.get<std::string>();
    bool is_choice = field.choices.empty();
    std::string choices;
    for (const std::string& choice : field.choices)
      is_choice |= choice == text, choices += (choices.empty() ? "one of " : ", ") + choice;
    expect(is_choice, field, choices.c_str(), value);
    target = text;
  }

  template <class Element>
  void read(const Field& field, const ordered_json& value, std::vector<Element>& target) const {
    const bool is_alone = std::is_same_v<Element, std::string> && !value.is_array();
    expect(value.is_array() || is_alone, field, "a list", value);
    std::vector<Element> elements;
    for (const ordered_json& element : is_alone ? ordered_json::array({value}) : value)
      read(field, element, elements.emplace_back());
    target = std::move(elements);
  }

  void read(const Field& field, const ordered_json& value, std::map<int64_t, double>& target) const {
    expect(value.is_object(), field, "an object", value);
    for (const auto& [name, number] : value.items()) {
      const std::optional<int64_t> id = parse_id(name);
      require(id.has_value(), component_, field.name, " must have numbers by their ids: got ", name);
      read(field, number, target[*id]);
    }
  }

  static constexpr auto kMaxUnsigned = static_cast<uint64_t>(kMaxInteger);
  const ordered_json& object_;
  const char* component_;
  std::vector<std::string> known_;
  std::map<std::string, std::string> renamed_;  // previous names that the object has, and the present ones
};

}  // namespace

std::vector<std::string> read_json_fields(const ordered_json& object, const std::function<void(Fields&)>& visit,
                                          const char* component) {
  JsonReader reader(object, component);
  visit(reader);
  return reader.names();
}

}  // namespace colossal
