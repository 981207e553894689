// The keywords of JSON Schema, grouped by their effect.
#pragma once
#include <set>
#include <string>

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

}  // namespace colossal::text
