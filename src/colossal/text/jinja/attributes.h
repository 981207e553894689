// Evaluation of `value.name` and `value[key]`: the attributes, methods and elements of Python's objects.
#pragma once
#include "colossal/text/jinja/interpreter.h"

namespace colossal::text::jinja {

/// Returns the attribute; if there is none the element; else undefined. Errors: `object` is undefined.
Value attribute(Interpreter& interpreter, const Value& object, std::string_view name);
/// Returns the element; if there is none and `key` is a text, the attribute; else undefined.
/// Errors: `object` is undefined.
Value element(Interpreter& interpreter, const Value& object, const Value& key);
/// Returns the attribute but never the element, as the filter `attr` does.
Value attribute_only(Interpreter& interpreter, const Value& object, std::string_view name);

/// Implementation of a method or function. `self` is the object it is called on, or None.
using Native = Value (*)(Interpreter&, const Value& self, Arguments&);
/// Returns a function or bound method with the name.
Value make_native(Interpreter& interpreter, std::string_view name, Native function, Value self = {});

/// Returns the method of str with the name; nullptr if there is none.
Native text_method(std::string_view name);

/// The arguments of a call, matched with the names of the parameters.
/// Errors: too many arguments, unknown or repeated names, and a missing argument among the first `required`.
class Bound {
 public:
  Bound(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
        size_t required = 0);
  bool has(size_t i) const { return values_[i].has_value(); }
  /// Returns argument `i`; None if it was not passed.
  Value at(size_t i) const { return values_[i].value_or(Value::none()); }
  Value at(size_t i, Value otherwise) const { return values_[i].value_or(std::move(otherwise)); }
  bool is_none(size_t i) const { return !has(i) || values_[i]->is_none(); }
  bool truth(size_t i, bool otherwise) const { return has(i) ? is_true(*values_[i]) : otherwise; }
  /// Returns argument `i`, or `otherwise` if it was not passed. Errors: the argument is not an integer.
  int64_t integer(size_t i, int64_t otherwise) const;
  /// Returns the bytes of a text argument. Errors: the argument is not a text.
  const std::string& text(size_t i) const;

 private:
  const char* function_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace colossal::text::jinja
