// What `value.name` and `value[key]` are: the attributes, methods and elements of Python's objects.
#pragma once
#include "colossal/text/jinja/interpreter.h"

namespace colossal::text::jinja {

/// The attribute if there is one, else the element, else undefined. Errors: of an undefined value.
Value attribute(Interpreter& interpreter, const Value& object, std::string_view name);
/// The element if there is one, else for a text the attribute, else undefined. Errors: of an undefined value.
Value element(Interpreter& interpreter, const Value& object, const Value& key);
/// The attribute alone, as the filter `attr` has it.
Value attribute_only(Interpreter& interpreter, const Value& object, std::string_view name);

/// What a method or function is: `self` the object it is called on, or None.
using Native = Value (*)(Interpreter&, const Value& self, Arguments&);
/// A function or bound method of that name.
Value make_native(Interpreter& interpreter, std::string_view name, Native function, Value self = {});

/// The methods of str; nullptr where it has none of the name.
Native text_method(std::string_view name);

/// The arguments of a call by the names of the parameters.
/// Errors: too many, unknown or repeated ones, and fewer than the first `required`.
class Bound {
 public:
  Bound(const char* function, const Arguments& arguments, std::initializer_list<const char*> names,
        size_t required = 0);
  bool has(size_t i) const { return values_[i].has_value(); }
  /// None where it is not given.
  Value at(size_t i) const { return values_[i].value_or(Value::none()); }
  Value at(size_t i, Value otherwise) const { return values_[i].value_or(std::move(otherwise)); }
  bool is_none(size_t i) const { return !has(i) || values_[i]->is_none(); }
  bool truth(size_t i, bool otherwise) const { return has(i) ? is_true(*values_[i]) : otherwise; }
  /// Errors: not an integer.
  int64_t integer(size_t i, int64_t otherwise) const;
  /// The bytes of a text. Errors: not a text.
  const std::string& text(size_t i) const;

 private:
  const char* function_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace colossal::text::jinja
