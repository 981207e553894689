#include "colossal/models/own_ranges.h"

#include <algorithm>

#include "colossal/base/json_file.h"
#include "colossal/base/number.h"

namespace colossal::models {
namespace {

class RangeChecker : public Fields {
  void visit(const Field& field) override {
    std::visit([&](const auto* value) { check(field, *value); }, field.value);
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}

  static void check(const Field&, bool) {}
  static void check(const Field& field, int64_t value) {
    const bool is_off = field.can_be_off && value == -1;
    require(is_off || (value >= field.min && value <= field.max), "model", field.name, " must be between ", field.min,
            " and ", field.max, ": got ", value);
  }
  static void check(const Field& field, double value) {
    const bool inside = value >= field.low && value <= field.high;  // false for NaN
    require(inside, "model", field.name, " must be between ", print_number(field.low), " and ",
            print_number(field.high), ": got ", print_number(value));
  }
  static void check(const Field& field, const std::string& value) {
    if (field.choices.empty() || std::find(field.choices.begin(), field.choices.end(), value) != field.choices.end())
      return;
    std::string all;
    for (const std::string& choice : field.choices) all += (all.empty() ? "" : ", ") + choice;
    throw Error("model", concat(field.name, " must be one of ", all, ": got ", printable(value)));
  }
  template <class Element>
  static void check(const Field& field, const std::vector<Element>& values) {
    for (const Element& value : values) check(field, value);
  }
  static void check(const Field& field, const std::map<int64_t, double>& numbers) {
    for (const auto& [id, number] : numbers) check(field, number);
  }
};

}  // namespace

void check_own_ranges(OwnSizes own) {
  RangeChecker checker;
  own.fields(checker);
}

}  // namespace colossal::models
