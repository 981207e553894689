#include <cmath>
#include <map>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/filters.h"
#include "colossal/text/jinja/operators.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

/// Implements tests without arguments.
template <bool (*asks)(const Value&)>
Value alone(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("this test", arguments, {});
  return Value::boolean(asks(value));
}

bool is_defined(const Value& v) { return !v.undefined(); }
bool is_undefined(const Value& v) { return v.undefined() != nullptr; }
bool is_none(const Value& v) { return v.is_none(); }
bool is_boolean(const Value& v) { return v.is_boolean(); }
bool is_false(const Value& v) { return v.is_boolean() && !v.truth_of_boolean(); }
bool is_true_(const Value& v) { return v.is_boolean() && v.truth_of_boolean(); }
bool is_integer(const Value& v) { return v.is_integer(); }
bool is_float(const Value& v) { return v.is_real(); }
bool is_string(const Value& v) { return v.text() != nullptr; }
bool is_mapping(const Value& v) { return v.dict() != nullptr; }
bool is_number(const Value& v) { return v.is_number(); }
bool is_escaped(const Value& v) { return v.text() && v.text()->markup; }
bool is_callable(const Value& v) { return v.undefined() || (v.object() && v.object()->is_callable()); }

bool is_sequence(const Value& v) {
  return v.text() || v.dict() || v.undefined() || v.is_list() || v.is_tuple() ||
         (v.items() && v.items()->kind == Sequence::Range);
}

Value is_case(Interpreter& interpreter, const Value& value, Class asked) {
  const std::string text = str(interpreter.budget(), value);
  interpreter.budget().step_characters(text.size());
  return Value::boolean(is_class(text, asked));
}

Value is_lower(Interpreter& i, const Value& v, Arguments&) { return is_case(i, v, Class::Lower); }
Value is_upper(Interpreter& i, const Value& v, Arguments&) { return is_case(i, v, Class::Upper); }

bool leaves(Interpreter& interpreter, const Value& value, int64_t divisor, int64_t rest) {
  const Value modulo = binary(interpreter.budget(), NodeKind::Modulo, value, Value::integer(divisor));
  return is_equal(interpreter.budget(), modulo, Value::integer(rest));
}

Value is_odd(Interpreter& i, const Value& v, Arguments&) { return Value::boolean(leaves(i, v, 2, 1)); }
Value is_even(Interpreter& i, const Value& v, Arguments&) { return Value::boolean(leaves(i, v, 2, 0)); }

Value is_divisible(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("test_divisibleby", arguments, {"num"}, 1);
  const Value modulo = binary(interpreter.budget(), NodeKind::Modulo, value, bound.at(0));
  return Value::boolean(is_equal(interpreter.budget(), modulo, Value::integer(0)));
}

Value is_same(Interpreter&, const Value& value, Arguments& arguments) {
  const Bound bound("test_sameas", arguments, {"other"}, 1);
  return Value::boolean(value.is_same(bound.at(0)));
}

template <Comparison comparison>
Value compares(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("this test", arguments, {"other"}, 1);
  return Value::boolean(compare(interpreter.budget(), comparison, value, bound.at(0)));
}

Value is_filter(Interpreter&, const Value& value, Arguments&) {
  return Value::boolean(value.text() && find_filter(value.text()->bytes));
}

Value is_test(Interpreter&, const Value& value, Arguments&) {
  return Value::boolean(value.text() && find_test(value.text()->bytes));
}

}  // namespace

Native find_test(std::string_view name) {
  static const std::map<std::string_view, Native> tests{
      {"!=", compares<Comparison::NotEqual>},
      {"<", compares<Comparison::Less>},
      {"<=", compares<Comparison::LessEqual>},
      {"==", compares<Comparison::Equal>},
      {">", compares<Comparison::Greater>},
      {">=", compares<Comparison::GreaterEqual>},
      {"boolean", alone<is_boolean>},
      {"callable", alone<is_callable>},
      {"defined", alone<is_defined>},
      {"divisibleby", is_divisible},
      {"eq", compares<Comparison::Equal>},
      {"equalto", compares<Comparison::Equal>},
      {"escaped", alone<is_escaped>},
      {"even", is_even},
      {"false", alone<is_false>},
      {"filter", is_filter},
      {"float", alone<is_float>},
      {"ge", compares<Comparison::GreaterEqual>},
      {"greaterthan", compares<Comparison::Greater>},
      {"gt", compares<Comparison::Greater>},
      {"in", compares<Comparison::In>},
      {"integer", alone<is_integer>},
      {"iterable", alone<is_iterable>},
      {"le", compares<Comparison::LessEqual>},
      {"lessthan", compares<Comparison::Less>},
      {"lower", is_lower},
      {"lt", compares<Comparison::Less>},
      {"mapping", alone<is_mapping>},
      {"ne", compares<Comparison::NotEqual>},
      {"none", alone<is_none>},
      {"number", alone<is_number>},
      {"odd", is_odd},
      {"sameas", is_same},
      {"sequence", alone<is_sequence>},
      {"string", alone<is_string>},
      {"test", is_test},
      {"true", alone<is_true_>},
      {"undefined", alone<is_undefined>},
      {"upper", is_upper},
  };
  const auto found = tests.find(name);
  return found == tests.end() ? nullptr : found->second;
}

}  // namespace colossal::text::jinja
