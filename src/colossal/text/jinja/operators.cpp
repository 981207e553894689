#include "colossal/text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/format.h"
#include "colossal/text/jinja/print.h"
#include "colossal/text/jinja/text_parts.h"

namespace colossal::text::jinja {
namespace {

const char* sign_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::Add:
      return "+";
    case NodeKind::Subtract:
      return "-";
    case NodeKind::Multiply:
      return "*";
    case NodeKind::Divide:
      return "/";
    case NodeKind::FloorDivide:
      return "//";
    case NodeKind::Modulo:
      return "%";
    default:
      return "** or pow()";
  }
}

[[noreturn]] void refuse_types(NodeKind kind, const Value& a, const Value& b) {
  fail(Cause::Type, "unsupported operand type(s) for ", sign_of(kind), ": '", type_name(a), "' and '", type_name(b),
       "'");
}

[[noreturn]] void refuse_size() { fail(Cause::Unsupported, "integers must fit 64 bits"); }

int64_t floor_divided(int64_t a, int64_t b) {
  if (b == 0) fail(Cause::ZeroDivision, "integer division or modulo by zero");
  if (b == -1) {
    if (a == INT64_MIN) refuse_size();
    return -a;
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t floor_modulo(int64_t a, int64_t b) {
  if (b == 0) fail(Cause::ZeroDivision, "integer modulo by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value power_of_integers(int64_t a, int64_t b) {
  if (b < 0) {
    if (a == 0) fail(Cause::ZeroDivision, "0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  if (a == 0 || a == 1) return Value::integer(b == 0 ? 1 : a);
  if (a == -1) return Value::integer(b % 2 == 0 ? 1 : -1);
  int64_t result = 1;
  for (; b > 0; --b)  // |a| >= 2 overflows within 64 iterations
    if (__builtin_mul_overflow(result, a, &result)) refuse_size();
  return Value::integer(result);
}

Value of_integers(NodeKind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (kind) {
    case NodeKind::Add:
      if (__builtin_add_overflow(a, b, &result)) refuse_size();
      return Value::integer(result);
    case NodeKind::Subtract:
      if (__builtin_sub_overflow(a, b, &result)) refuse_size();
      return Value::integer(result);
    case NodeKind::Multiply:
      if (__builtin_mul_overflow(a, b, &result)) refuse_size();
      return Value::integer(result);
    case NodeKind::Divide:
      if (b == 0) fail(Cause::ZeroDivision, "division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case NodeKind::FloorDivide:
      return Value::integer(floor_divided(a, b));
    case NodeKind::Modulo:
      return Value::integer(floor_modulo(a, b));
    default:
      return power_of_integers(a, b);
  }
}

double real_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value of_reals(NodeKind kind, double a, double b) {
  const bool divides = kind == NodeKind::Divide || kind == NodeKind::FloorDivide || kind == NodeKind::Modulo;
  if (divides && b == 0)
    fail(Cause::ZeroDivision, kind == NodeKind::Divide        ? "float division by zero"
                              : kind == NodeKind::FloorDivide ? "float floor division by zero"
                                                              : "float modulo");
  switch (kind) {
    case NodeKind::Add:
      return Value::real(a + b);
    case NodeKind::Subtract:
      return Value::real(a - b);
    case NodeKind::Multiply:
      return Value::real(a * b);
    case NodeKind::Divide:
      return Value::real(a / b);
    case NodeKind::FloorDivide: {
      const double quotient = (a - real_modulo(a, b)) / b;
      const double whole = std::floor(quotient);
      return Value::real(quotient - whole > 0.5 ? whole + 1 : whole);
    }
    case NodeKind::Modulo:
      return Value::real(real_modulo(a, b));
    default:
      break;
  }
  if (a == 0 && b < 0) fail(Cause::ZeroDivision, "0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b))
    fail(Cause::Unsupported, "complex numbers are not supported");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
    fail(Cause::Overflow, "(34, 'Numerical result out of range')");
  return Value::real(result);
}

Value repeated(Budget& budget, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const String* text = value.text()) {
    budget.take_bytes(static_cast<int64_t>(text->bytes.size()), times);
    std::string out;
    append_times(out, text->bytes, times);
    return make_text(budget, std::move(out), text->markup);
  }
  const Items& items = *value.items();
  budget.take_bytes(static_cast<int64_t>(items.values.size() * sizeof(Value)), times);
  std::vector<Value> values;
  values.reserve(items.values.size() * static_cast<size_t>(times));
  if (!items.values.empty())
    for (; times > 0; --times) values.insert(values.end(), items.values.begin(), items.values.end());
  return make_items(budget, std::move(values), items.kind);
}

bool is_row(const Value& value) { return value.is_list() || value.is_tuple(); }

std::string escaped(const Value& value, bool in_markup) {
  return in_markup && !value.text()->markup ? escape_html(value.text()->bytes) : value.text()->bytes;
}

Value added(Budget& budget, const Value& a, const Value& b) {
  if (a.text() && b.text()) {
    const bool markup = a.text()->markup || b.text()->markup;
    return make_text(budget, escaped(a, markup) + escaped(b, markup), markup);
  }
  if (is_row(a) && is_row(b) && a.items()->kind == b.items()->kind) {
    budget.take_bytes(static_cast<int64_t>((a.items()->values.size() + b.items()->values.size()) * sizeof(Value)));
    std::vector<Value> values = a.items()->values;
    values.insert(values.end(), b.items()->values.begin(), b.items()->values.end());
    return make_items(budget, std::move(values), a.items()->kind);
  }
  if (a.text()) fail(Cause::Type, "can only concatenate str (not \"", type_name(b), "\") to str");
  if (is_row(a))
    fail(Cause::Type, "can only concatenate ", type_name(a), " (not \"", type_name(b), "\") to ", type_name(a));
  refuse_types(NodeKind::Add, a, b);
}

bool contains(Budget& budget, const Value& container, const Value& value) {
  if (const String* text = container.text()) {
    if (!value.text()) fail(Cause::Type, "'in <string>' requires string as left operand, not ", type_name(value));
    budget.step(static_cast<int64_t>(text->bytes.size() / 16));
    return find(text->bytes, value.text()->bytes) != std::string_view::npos;
  }
  if (container.dict()) {
    require_hashable(value);
    step_key(budget, value);
    return container.dict()->find(value) != nullptr;
  }
  if (container.undefined()) return false;
  if (!container.items()) fail(Cause::Type, "argument of type '", type_name(container), "' is not iterable");
  Items& items = *container.items();
  if (!container.is_generator()) {
    return std::any_of(items.values.begin(), items.values.end(),
                       [&](const Value& item) { return item.is_same(value) || is_equal(budget, item, value); });
  }
  while (items.walked < items.values.size())
    if (is_equal(budget, items.values[items.walked++], value)) return true;
  if (const auto failure = std::move(items.failure)) throw *failure;
  return false;
}

/// Returns `part`, the start or stop of a slice, as an index clamped to [low, high]; `otherwise` if it is None.
int64_t border(const Value& part, int64_t otherwise, int64_t size, int64_t low, int64_t high) {
  if (part.is_none()) return otherwise;
  if (!part.is_whole()) fail(Cause::Type, "slice indices must be integers or None or have an __index__ method");
  int64_t at = part.whole();
  if (at < 0) at = at < -size ? low : at + size;
  return std::clamp(at, low, high);
}

}  // namespace

Value binary(Budget& budget, NodeKind kind, const Value& a, const Value& b) {
  if (kind == NodeKind::Modulo && a.text()) return format_percent(budget, *a.text(), b);
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number())
    return a.is_whole() && b.is_whole() ? of_integers(kind, a.whole(), b.whole())
                                        : of_reals(kind, a.number(), b.number());
  if (kind == NodeKind::Add) return added(budget, a, b);
  if (kind == NodeKind::Multiply) {
    if ((a.text() || is_row(a)) && b.is_whole()) return repeated(budget, a, b.whole());
    if ((b.text() || is_row(b)) && a.is_whole()) return repeated(budget, b, a.whole());
    if (a.text() || is_row(a) || b.text() || is_row(b))
      fail(Cause::Type, "can't multiply sequence by non-int of type '", type_name(a.text() || is_row(a) ? b : a), "'");
  }
  refuse_types(kind, a, b);
}

Value unary(Budget&, NodeKind kind, const Value& a) {
  require_defined(a);
  if (!a.is_number())
    fail(Cause::Type, "bad operand type for unary ", kind == NodeKind::Negative ? "-" : "+", ": '", type_name(a), "'");
  if (a.is_real()) return Value::real(kind == NodeKind::Negative ? -a.number() : a.number());
  if (kind == NodeKind::Positive) return Value::integer(a.whole());
  if (a.whole() == INT64_MIN) refuse_size();
  return Value::integer(-a.whole());
}

bool compare(Budget& budget, Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::Equal:
      return is_equal(budget, a, b);
    case Comparison::NotEqual:
      return !is_equal(budget, a, b);
    case Comparison::In:
      return contains(budget, b, a);
    case Comparison::NotIn:
      return !contains(budget, b, a);
    case Comparison::Less:
      return is_less(budget, a, b, "<");
    case Comparison::Greater: {
      if (a.is_number() && b.is_number()) return is_less(budget, b, a);
      is_less(budget, a, b, ">");  // if they cannot be compared, fails and names a's type first
      return is_less(budget, b, a);
    }
    default:
      break;
  }
  if (comparison == Comparison::LessEqual) return is_less(budget, a, b, "<=") || is_equal(budget, a, b);
  return is_equal(budget, a, b) ? (is_less(budget, a, b, ">="), true)
                                : (is_less(budget, a, b, ">="), is_less(budget, b, a));
}

std::optional<int64_t> place_of(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return index;
}

Value character_at(Budget& budget, const String& text, int64_t index) {
  const size_t begin = byte_of_character(text.bytes, index, text.is_ascii());
  if (!text.is_ascii()) budget.step_characters(static_cast<size_t>(index));
  return make_text(budget, text.bytes.substr(begin, character_length(text.bytes, begin)), text.markup);
}

Value slice(Budget& budget, const Value& value, const Value& begin, const Value& end, const Value& step) {
  require_defined(value);
  for (const Value* part : {&begin, &end, &step}) require_defined(*part);
  const bool is_view = value.items() && !is_row(value) && value.items()->kind != Sequence::Range;
  if (value.dict()) fail(Cause::Type, "unhashable type: 'slice'");
  if ((!value.text() && !value.items()) || is_view)
    fail(Cause::Type, "'", type_name(value), "' object is not subscriptable");
  if (!step.is_none() && !step.is_whole())
    fail(Cause::Type, "slice indices must be integers or None or have an __index__ method");
  const int64_t by = step.is_none() ? 1 : step.whole(), size = length_of(value);
  if (by == 0) fail(Cause::Value, "slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const int64_t from = border(begin, by > 0 ? 0 : size - 1, size, low, high);
  const int64_t to = border(end, by > 0 ? size : -1, size, low, high);
  const int64_t distance = by > 0 ? to - from : from - to;
  const uint64_t stride = by > 0 ? static_cast<uint64_t>(by) : uint64_t{0} - static_cast<uint64_t>(by);
  const int64_t count = distance <= 0 ? 0 : 1 + static_cast<int64_t>(static_cast<uint64_t>(distance - 1) / stride);
  if (const String* text = value.text()) {
    if (by == 1) {
      if (!text->is_ascii()) budget.step_characters(text->bytes.size());
      const bool ascii = text->is_ascii();
      const size_t first = byte_of_character(text->bytes, from, ascii);
      const size_t last = first + byte_of_character(std::string_view(text->bytes).substr(first), count, ascii);
      return make_text(budget, text->bytes.substr(first, last - first), text->markup);
    }
    const std::vector<Value> characters = walk(budget, value);
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += characters[static_cast<size_t>(from + i * by)].text()->bytes;
    return make_text(budget, std::move(out), text->markup);
  }
  const Items& items = *value.items();
  budget.take_bytes(count * static_cast<int64_t>(sizeof(Value)));
  std::vector<Value> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(items.values[static_cast<size_t>(from + i * by)]);
  Value made = make_items(budget, std::move(values), items.kind);
  if (items.kind == Sequence::Range) {
    const auto along = [&](int64_t steps) {  // unsigned, so that a border outside int64 wraps around
      return static_cast<int64_t>(static_cast<uint64_t>(items.start) +
                                  static_cast<uint64_t>(steps) * static_cast<uint64_t>(items.step));
    };
    made.items()->start = along(from);
    made.items()->stop = along(to);
    made.items()->step = static_cast<int64_t>(static_cast<uint64_t>(items.step) * static_cast<uint64_t>(by));
  }
  return made;
}

}  // namespace colossal::text::jinja
