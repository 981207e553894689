// The filters (`value|name(...)`) and tests (`value is name(...)`) of jinja2, with transformers' tojson.
#pragma once
#include "colossal/text/jinja/attributes.h"

namespace colossal::text::jinja {

/// Return the implementation of a filter or test; nullptr if jinja2 has none of the name.
Native find_filter(std::string_view name);
Native find_test(std::string_view name);

/// Returns a filter of numbers, or of texts that spell numbers; nullptr if `name` is none of them.
Native find_number_filter(std::string_view name);
/// Returns a filter of lists and other iterables; nullptr if `name` is none of them.
Native find_sequence_filter(std::string_view name);

/// Checks the names of all filters and tests.
/// Errors: a name that jinja2 does not have. Names within an `if` are not checked, because they may be guarded; they
/// fail when they are evaluated.
void require_known_filters(const Tree& tree);

/// Return value|name(arguments) and `value is name(arguments)`, as `map` and `select` call them. Errors: no such name.
Value apply_filter(Interpreter& interpreter, const Value& name, const Value& value, Arguments& arguments);
Value apply_test(Interpreter& interpreter, const Value& name, const Value& value, Arguments& arguments);

/// The attribute of an item that a filter reads: "name", "outer.inner", "pair.0" or a number.
class AttributePath {
 public:
  /// Parses `path`; None stands for the item itself.
  AttributePath(Interpreter& interpreter, const Value& path);
  /// Returns the attribute of `item`. `otherwise` replaces each part of the path that is undefined; null = it stays so.
  Value of(const Value& item, const Value* otherwise = nullptr) const;

 private:
  Interpreter& interpreter_;
  std::vector<Value> parts_;
};

/// Returns a text in lower case and any other value unchanged. Sorting and grouping compare these by default.
Value without_case(Interpreter& interpreter, const Value& value, bool case_sensitive);

}  // namespace colossal::text::jinja
