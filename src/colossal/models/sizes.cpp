#include "colossal/models/sizes.h"

#include <algorithm>

#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"

namespace colossal::models {
namespace {

class RangeChecker : public Fields {
  void visit(const Field& field) override {
    const std::string name = table_ + field.name;
    std::visit([&](const auto* value) { check(name, field, *value); }, field.value);
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char* section, const char*, const char*) override { table_ += concat(section, "."); }
  void leave() override { table_.resize(table_.rfind('.', table_.size() - 2) + 1); }

  static void check(const std::string&, const Field&, bool) {}
  static void check(const std::string& name, const Field& field, int64_t value) {
    const bool is_off = field.can_be_off && value == -1;
    require(is_off || (value >= field.min && value <= field.max), "model", name, " must be between ", field.min,
            " and ", field.max, ": got ", value);
  }
  static void check(const std::string& name, const Field& field, double value) {
    const bool inside = value >= field.low && value <= field.high;  // false for NaN
    require(inside, "model", name, " must be between ", print_number(field.low), " and ", print_number(field.high),
            ": got ", print_number(value));
  }
  static void check(const std::string& name, const Field& field, const std::string& value) {
    if (field.choices.empty() || std::find(field.choices.begin(), field.choices.end(), value) != field.choices.end())
      return;
    throw Error("model", concat(name, " must be one of ", join(field.choices), ": got ", printable(value)));
  }
  template <class Element>
  static void check(const std::string& name, const Field& field, const std::vector<Element>& values) {
    for (const Element& value : values) check(name, field, value);
  }
  static void check(const std::string& name, const Field& field, const std::map<int64_t, double>& numbers) {
    for (const auto& [id, number] : numbers) check(name, field, number);
  }

  std::string table_;  // names of the tables around the field, each followed by a dot
};

}  // namespace

void check_own_ranges(OwnSizes own) {
  RangeChecker checker;
  own.fields(checker);
}

}  // namespace colossal::models
