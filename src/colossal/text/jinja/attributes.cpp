#include "colossal/text/jinja/attributes.h"

#include <algorithm>
#include <cmath>

#include "colossal/text/jinja/operators.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

/// A function, or a method bound to the value from which it was read.
class NativeFunction : public Object {
 public:
  NativeFunction(std::string name, Native function, Value self)
      : name_(std::move(name)), function_(function), self_(std::move(self)), depth_(depth_of(self_) + 1) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Budget&) const override {
    if (self_.is_none()) return "<built-in function " + name_ + ">";
    return "<built-in method " + name_ + " of " + jinja::type_name(self_) + " object>";
  }
  bool is_callable() const override { return true; }
  int depth() const override { return depth_; }
  Value call(Interpreter& interpreter, Arguments& arguments) override {
    return function_(interpreter, self_, arguments);
  }

 private:
  std::string name_;
  Native function_;
  Value self_;
  int depth_;
};

Value get(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("get", arguments, {"key", "default"}, 1);
  require_hashable(bound.at(0));
  step_key(interpreter.budget(), bound.at(0));
  const Value* found = self.dict()->find(bound.at(0));
  return found ? *found : bound.at(1);
}

Value entries(Interpreter& interpreter, const Value& self, Arguments& arguments, Sequence kind) {
  const Bound bound(kind == Sequence::Keys ? "keys" : kind == Sequence::Values ? "values" : "items", arguments, {});
  std::vector<Value> values;
  interpreter.budget().step(static_cast<int64_t>(self.dict()->size()));
  for (const auto& [key, value] : self.dict()->entries()) {
    if (kind == Sequence::Pairs)
      values.push_back(interpreter.make({key, value}, Sequence::Tuple));
    else
      values.push_back(kind == Sequence::Keys ? key : value);
  }
  return interpreter.make(std::move(values), kind);
}

Value keys(Interpreter& i, const Value& self, Arguments& a) { return entries(i, self, a, Sequence::Keys); }
Value values(Interpreter& i, const Value& self, Arguments& a) { return entries(i, self, a, Sequence::Values); }
Value pairs(Interpreter& i, const Value& self, Arguments& a) { return entries(i, self, a, Sequence::Pairs); }

Value copy_of(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("copy", arguments, {});
  return self.dict() ? make_dict(interpreter.budget(), *self.dict()) : interpreter.make(self.items()->values);
}

Value count_items(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("count", arguments, {"value"}, 1);
  int64_t times = 0;
  for (const Value& item : self.items()->values) times += is_equal(interpreter.budget(), item, bound.at(0));
  return Value::integer(times);
}

Value index_of_item(Interpreter& interpreter, const Value& self, Arguments& arguments) {
  const Bound bound("index", arguments, {"value", "start", "stop"}, 1);
  const auto& values = self.items()->values;
  const auto size = static_cast<int64_t>(values.size());
  const auto border = [&](int64_t at) { return std::clamp(at < 0 ? at + size : at, int64_t{0}, size); };
  const int64_t end = border(bound.integer(2, size));
  for (int64_t i = border(bound.integer(1, 0)); i < end; ++i)
    if (is_equal(interpreter.budget(), values[static_cast<size_t>(i)], bound.at(0))) return Value::integer(i);
  fail(Cause::Value, repr(interpreter.budget(), bound.at(0)), " is not in list");
}

Value is_integer(Interpreter&, const Value& self, Arguments&) {
  return Value::boolean(std::isfinite(self.number()) && std::floor(self.number()) == self.number());
}

Value bit_length(Interpreter&, const Value& self, Arguments&) {
  const int64_t value = self.whole();
  uint64_t rest = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  int64_t bits = 0;
  for (; rest; rest >>= 1) ++bits;
  return Value::integer(bits);
}

Native dict_method(std::string_view name) {
  if (name == "get") return get;
  if (name == "items") return pairs;
  if (name == "keys") return keys;
  if (name == "values") return values;
  return name == "copy" ? copy_of : nullptr;
}

Native row_method(std::string_view name, Sequence kind) {
  if (kind != Sequence::List && kind != Sequence::Tuple && kind != Sequence::Range) return nullptr;
  if (name == "count") return count_items;
  if (name == "index") return index_of_item;
  return name == "copy" && kind == Sequence::List ? copy_of : nullptr;
}

bool is_one_of(std::string_view name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* other) { return name == other; });
}

/// Returns true for methods that would change a list or dictionary.
bool is_change(const Value& object, std::string_view name) {
  if (object.dict()) return is_one_of(name, {"clear", "pop", "popitem", "setdefault", "update"});
  return object.is_list() &&
         is_one_of(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
}

Value unsafe(const Value& object, std::string_view name) {
  return make_undefined(
      concat("access to attribute ", repr_of_text(name), " of '", type_name(object), "' object is unsafe."),
      Cause::Security);
}

Value missing(Budget& budget, const Value& object, const Value& key) {
  Undefined undefined;
  undefined.object = described_type(object);
  undefined.name = repr(budget, key);
  undefined.is_element = !key.text();
  budget.take_bytes(static_cast<int64_t>(sizeof(Undefined) + undefined.name.size()));
  return Value::of(std::make_shared<const Undefined>(std::move(undefined)));
}

std::optional<Value> number_attribute(Interpreter& interpreter, const Value& object, std::string_view name) {
  if (name == "real" || name == "numerator") return object.is_boolean() ? Value::integer(object.whole()) : object;
  if (name == "imag") return object.is_real() ? Value::real(0) : Value::integer(0);
  if (name == "denominator" && object.is_whole()) return Value::integer(1);
  if (name == "is_integer" && object.is_real()) return make_native(interpreter, name, is_integer, object);
  if (name == "bit_length" && object.is_whole()) return make_native(interpreter, name, bit_length, object);
  return std::nullopt;
}

std::optional<Value> found_attribute(Interpreter& interpreter, const Value& object, std::string_view name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return unsafe(object, name);
  if (is_change(object, name)) return unsafe(object, name);
  Native method = nullptr;
  if (object.text())
    method = text_method(name);
  else if (object.dict())
    method = dict_method(name);
  else if (object.items())
    method = row_method(name, object.items()->kind);
  if (object.items() && object.items()->is_group && is_one_of(name, {"grouper", "list"}))
    return object.items()->values[name == "list"];
  if (method) return make_native(interpreter, name, method, object);
  if (object.is_number()) return number_attribute(interpreter, object, name);
  if (object.items() && object.items()->kind == Sequence::Range) {
    if (name == "start") return Value::integer(object.items()->start);
    if (name == "stop") return Value::integer(object.items()->stop);
    if (name == "step") return Value::integer(object.items()->step);
  }
  if (!object.object()) return std::nullopt;
  auto found = object.object()->attribute(interpreter, name);
  return found && name.starts_with('_') ? unsafe(object, name) : found;
}

std::optional<Value> found_element(Interpreter& interpreter, const Value& object, const Value& key) {
  if (object.dict()) {
    if (key.dict() || (key.items() && !key.is_tuple())) return std::nullopt;
    require_hashable(key);
    step_key(interpreter.budget(), key);
    const Value* found = object.dict()->find(key);
    return found ? std::optional<Value>(*found) : std::nullopt;
  }
  if (!key.is_whole()) return std::nullopt;
  const Items* items = object.items();
  const bool is_row = items && (object.is_list() || object.is_tuple() || items->kind == Sequence::Range);
  if (!is_row && !object.text()) return std::nullopt;
  const auto place = place_of(key.whole(), length_of(object));
  if (!place) return std::nullopt;
  return is_row ? items->values[static_cast<size_t>(*place)]
                : character_at(interpreter.budget(), *object.text(), *place);
}

}  // namespace

Value make_native(Interpreter& interpreter, std::string_view name, Native function, Value self) {
  interpreter.budget().take_bytes(static_cast<int64_t>(sizeof(NativeFunction) + name.size()));
  require_shallow(depth_of(self) + 1);
  return Value::of(
      std::shared_ptr<Object>(std::make_shared<NativeFunction>(std::string(name), function, std::move(self))));
}

Value attribute(Interpreter& interpreter, const Value& object, std::string_view name) {
  require_defined(object);
  if (auto found = found_attribute(interpreter, object, name)) return *found;
  if (object.dict()) {
    if (const Value* found = object.dict()->find(name)) return *found;
  }
  return missing(interpreter.budget(), object, interpreter.make(std::string(name)));
}

Value attribute_only(Interpreter& interpreter, const Value& object, std::string_view name) {
  require_defined(object);
  if (auto found = found_attribute(interpreter, object, name)) return *found;
  return missing(interpreter.budget(), object, interpreter.make(std::string(name)));
}

Value element(Interpreter& interpreter, const Value& object, const Value& key) {
  require_defined(object);
  if (auto found = found_element(interpreter, object, key)) return *found;
  if (key.text()) {
    if (auto found = found_attribute(interpreter, object, key.text()->bytes)) return *found;
  }
  return missing(interpreter.budget(), object, key);
}

Bound::Bound(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
             size_t required)
    : function_(function), values_(names.size()) {
  if (arguments.positional.size() > names.size())
    fail(Cause::Type, function, "() takes at most ", names.size(), " arguments (", arguments.positional.size(),
         " given)");
  std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(names.begin(), names.end(), name);
    if (place == names.end()) fail(Cause::Type, function, "() got an unexpected keyword argument ", repr_of_text(name));
    auto& slot = values_[static_cast<size_t>(place - names.begin())];
    if (slot) fail(Cause::Type, function, "() got multiple values for argument ", repr_of_text(name));
    slot = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!values_[i]) fail(Cause::Type, function, "() missing a required argument: '", names.begin()[i], "'");
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  require_defined(*values_[i]);
  if (!values_[i]->is_whole())
    fail(Cause::Type, "'", type_name(*values_[i]), "' object cannot be interpreted as an integer");
  return values_[i]->whole();
}

const std::string& Bound::text(size_t i) const {
  if (!values_[i]->text())
    fail(Cause::Type, function_, "() argument ", i + 1, " must be str, not ", type_name(*values_[i]));
  return values_[i]->text()->bytes;
}

}  // namespace colossal::text::jinja
