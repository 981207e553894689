// The values of one JSON type that meet a set of conditions.
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/text/json_decimal.h"
#include "colossal/text/json_schema_document.h"

namespace colossal::text {

/// A schema that must hold, or that must not.
struct Literal {
  int schema;  ///< its number (SchemaForms::number_of)
  bool holds = true;
  friend auto operator<=>(const Literal&, const Literal&) = default;
};
using Literals = std::set<Literal>;  ///< of one value, all together

enum class JsonType { Null, Boolean, Number, String, Array, Object };

/// The values of one type that meet all conditions. Conditions of other types have no meaning in it.
struct Form {
  JsonType type;
  bool is_typed = false;      ///< a keyword named the type, or a value of it
  bool is_mentioned = false;  ///< a keyword is about the type
  bool may_be_true = true, may_be_false = true;
  std::optional<std::vector<const Schema*>> values{};  ///< only these
  // numbers
  bool is_whole = true, is_fraction = true;  ///< what the number may be
  std::optional<Decimal> least{}, most{};
  bool excludes_least = false, excludes_most = false;
  std::vector<const Schema*> divisors{};
  // strings; lengths also of lists (items) and objects (members)
  int64_t least_size = 0;
  std::optional<int64_t> most_size{};
  std::vector<std::string> patterns{}, forbidden_patterns{}, forbidden_texts{};
  // lists and objects: schemas that say what items and members must be
  std::vector<const Schema*> parts{};
  std::set<std::string> required{};
  std::set<std::string> forbidden{};          ///< names of members that must not be there
  std::map<std::string, Literals> members{};  ///< beside what the parts say
};

std::vector<Form> all_types();
/// All types, of which one has the conditions of `form`.
std::vector<Form> all_types_with(const Form& form);
/// The values of a type that do not meet a condition: the form must have one condition.
Form inverse(Form form);
/// The values of both forms; none if the types differ or it is plain that there is no such value.
std::optional<Form> both(const Form& a, const Form& b, const SchemaDocument& document);
/// True if bounds, sizes or names leave no value.
bool is_contradictory(const Form& form);

}  // namespace colossal::text
