// The filters (`value|name(...)`) and tests (`value is name(...)`) of jinja2, with transformers' tojson.
#pragma once
#include "colossal/text/jinja/attributes.h"

namespace colossal::text::jinja {

/// What a filter or test does with the value before it. nullptr where jinja2 has none of the name.
Native find_filter(std::string_view name);
Native find_test(std::string_view name);

/// Returns a filter of numbers, or of texts that spell numbers; nullptr if `name` is none of them.
Native find_number_filter(std::string_view name);
/// The filters of lists, and of what else is walked; nullptr where the name is none of them.
Native find_sequence_filter(std::string_view name);

/// Errors: a filter or test that jinja2 has not, unless it stands within an `if`: there it may be guarded, and is an
/// error once it is reached.
void require_known_filters(const Tree& tree);

/// value|name(arguments), as `map` calls it. Errors: no such filter.
Value apply_filter(Interpreter& interpreter, const Value& name, const Value& value, Arguments& arguments);
Value apply_test(Interpreter& interpreter, const Value& name, const Value& value, Arguments& arguments);

/// The attribute of an item that filters look at: "name", "outer.inner", "pair.0" or a number.
class AttributePath {
 public:
  /// None: the item itself.
  AttributePath(Interpreter& interpreter, const Value& path);
  Value of(const Value& item, const Value* otherwise = nullptr) const;

 private:
  Interpreter& interpreter_;
  std::vector<Value> parts_;
};

/// A text in lower case, everything else as it is: what sorting and grouping compare unless asked otherwise.
Value without_case(Interpreter& interpreter, const Value& value, bool case_sensitive);

}  // namespace colossal::text::jinja
