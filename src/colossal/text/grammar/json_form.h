// The values of one JSON type that meet a set of conditions.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/text/grammar/json_decimal.h"
#include "colossal/text/grammar/json_schema_document.h"

namespace colossal::text {

/// A schema that must hold (`holds`), or that must not.
struct Literal {
  int schema;  ///< number of the schema (SchemaForms::number_of)
  bool holds = true;
  friend auto operator<=>(const Literal&, const Literal&) = default;
};
using Literals = std::set<Literal>;  ///< conditions on one value, all of which must hold

enum class JsonType { Null, Boolean, Number, String, Array, Object };

/// The values of one type that meet all conditions. Conditions for other types have no effect.
struct Form {
  JsonType type;
  bool is_typed = false;      ///< a keyword named the type or a value of it
  bool is_mentioned = false;  ///< a keyword constrains values of the type (minLength: strings)
  bool may_be_true = true, may_be_false = true;
  std::optional<std::vector<const Schema*>> values{};  ///< the only values allowed; not set = all
  // Conditions on numbers.
  bool is_whole = true, is_fraction = true;  ///< the number may be an integer; it may have a fraction
  std::optional<Decimal> min{}, max{};
  bool excludes_min = false, excludes_max = false;
  std::vector<const Schema*> divisors{};
  // Conditions on strings. The sizes are the length of a string, the number of items of a list, or of members of an
  // object.
  int64_t min_size = 0;
  std::optional<int64_t> max_size{};
  std::vector<std::string> patterns{}, forbidden_patterns{}, forbidden_texts{};
  bool is_unique = false;  ///< the items of a list differ
  // Conditions on lists and objects. `parts` are schemas whose keywords constrain items and members.
  std::vector<const Schema*> parts{};
  std::set<std::string> required{};
  std::set<std::string> forbidden{};          ///< names of members that must be absent
  std::map<std::string, Literals> members{};  ///< conditions on members, in addition to `parts`
};

std::vector<Form> all_types();
/// Returns the forms of all types without conditions, with `form` in place of the one of its type.
std::vector<Form> all_types_with(const Form& form);
/// Returns the values of the form's type that do not meet its condition. The form must have exactly one condition: a
/// bound of numbers, a pattern or a size.
Form inverse(Form form);
/// Returns the form of the values that meet both forms. Returns nullopt if the types differ or the result is
/// is_contradictory().
std::optional<Form> both(const Form& a, const Form& b, const SchemaDocument& document);
/// Returns true if bounds, sizes, names or the list of values leave no value. Patterns and divisors are not checked, so
/// false does not promise a value.
bool is_contradictory(const Form& form);

}  // namespace colossal::text
