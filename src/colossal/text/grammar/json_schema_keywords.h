// The keywords of JSON Schema, grouped by their effect.
#pragma once
#include <set>
#include <string>

namespace colossal::text {

/// Keywords that do not change which values are valid.
inline const std::set<std::string> kAnnotations = {
    "title",       "description", "default",          "examples",        "$schema",      "$id",
    "$anchor",     "$comment",    "readOnly",         "writeOnly",       "format",       "$defs",
    "definitions", "deprecated",  "contentMediaType", "contentEncoding", "contentSchema"};
/// Keywords that are read together with the keyword "if".
inline const std::set<std::string> kCompanions = {"then", "else"};
/// Keywords with conditions on the members of an object or on the items of a list.
inline const std::set<std::string> kMemberKeywords = {"properties", "patternProperties", "additionalProperties"};
inline const std::set<std::string> kItemKeywords = {"items", "prefixItems", "additionalItems"};

}  // namespace colossal::text
