// The keywords of JSON Schema: their groups by effect, and the conditions that single keywords put on the values of one
// type.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "colossal/text/grammar/json_form.h"
#include "colossal/text/grammar/json_schema_document.h"

namespace colossal::text {

/// Keywords that change which values are valid.
inline const std::set<std::string> kConstraints = {"$ref",
                                                   "additionalItems",
                                                   "additionalProperties",
                                                   "allOf",
                                                   "anyOf",
                                                   "const",
                                                   "dependencies",
                                                   "dependentRequired",
                                                   "dependentSchemas",
                                                   "else",
                                                   "enum",
                                                   "exclusiveMaximum",
                                                   "exclusiveMinimum",
                                                   "if",
                                                   "items",
                                                   "maxItems",
                                                   "maxLength",
                                                   "maxProperties",
                                                   "maximum",
                                                   "minItems",
                                                   "minLength",
                                                   "minProperties",
                                                   "minimum",
                                                   "multipleOf",
                                                   "not",
                                                   "oneOf",
                                                   "pattern",
                                                   "patternProperties",
                                                   "prefixItems",
                                                   "properties",
                                                   "propertyNames",
                                                   "required",
                                                   "then",
                                                   "type",
                                                   "uniqueItems"};
/// Keywords of any draft that change which values are valid, and are refused.
inline const std::set<std::string> kUnsupported = {"contains",    "unevaluatedItems", "unevaluatedProperties",
                                                   "$dynamicRef", "$recursiveRef",    "disallow",
                                                   "extends",     "divisibleBy"};
/// Keywords that are read together with the keyword "if".
inline const std::set<std::string> kCompanions = {"then", "else"};
/// Keywords with conditions on the members of an object or on the items of a list.
inline const std::set<std::string> kMemberKeywords = {"properties", "patternProperties", "additionalProperties",
                                                      "propertyNames"};
inline const std::set<std::string> kItemKeywords = {"items", "prefixItems", "additionalItems"};

/// Returns the constraint that an unknown keyword misspells by one edit; "" = none.
std::string misspelled_constraint(const std::string& keyword);

/// Returns true if the keyword does not change which values are valid. The standard demands that unknown keywords are
/// ignored: those of other programs (discriminator, nullable, x-order) are annotations, too.
bool is_annotation(const std::string& keyword);

/// Returns the type names under "type", which is one name or a list. Errors ("json schema"): another value.
std::vector<std::string> types_of(const SchemaDocument& document, const Schema& schema, const Schema& types);
/// Returns the form of all values of a type, given its name.
Form form_of_type(const std::string& type);
/// Returns the values of "enum" or "const". Errors ("json schema"): "enum" is not a list.
std::vector<const Schema*> constants(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                                     const Schema& value);
/// Return the forms of these values, and of all other values. If `values` contains a list, the second leaves out all
/// lists; if it contains an object, all objects.
std::vector<Form> forms_of(const std::vector<const Schema*>& values);
std::vector<Form> forms_without(const SchemaDocument& document, const std::vector<const Schema*>& values);
/// Returns the values of one type that meet a keyword about that type; no value if the keyword is not about a single
/// type.
/// Errors ("json schema"): a wrong value.
std::optional<Form> condition(const SchemaDocument& document, const Schema& schema, const std::string& keyword,
                              const Schema& value);

}  // namespace colossal::text
