// A JSON Schema (https://json-schema.org, draft 2020-12) as a grammar of the texts to write for it.
//
//   auto [grammar, rule] = text::json_grammar(R"({"type": "object", "properties": {"age": {"type": "integer"}}})");
//
// Every text of the grammar is JSON that the schema allows. Not the reverse; of several ways to write a value:
// - members come in the order of "properties", and none beyond them unless additionalProperties says so or there are
//   no properties; beside properties, names of further members are of characters that need no escape;
// - numbers have at most 16 digits before and after the point and 2 of an exponent, integers 18 and neither;
// - between tokens is nothing, a space, or a new line and up to 16 spaces: white space cannot go on for ever;
// - values of enum and const are spelt one way, without spaces.
//
// Read:     type (one or several), enum, const, anyOf, oneOf (as anyOf), allOf of one schema, $ref within the schema
//           with $defs and definitions, also to itself; properties, required, additionalProperties; items, prefixItems,
//           minItems, maxItems; minLength, maxLength; minimum, maximum, exclusiveMinimum, exclusiveMaximum of integers.
// Not read: title, description, default, examples, $schema, $id, $comment, deprecated, readOnly, writeOnly, format,
//           which change nothing about what is valid.
// All other keywords are refused by name, as are those that `type` makes meaningless.
#pragma once
#include <string>
#include <string_view>

#include "colossal/text/grammar.h"

namespace colossal::text {

struct JsonGrammar {
  Grammar grammar;
  int rule;
};

/// `name` is the schema's file, for messages. Errors ("json schema"): no object of JSON, longer than 256 KiB, or nested
/// deeper than 100; a keyword that
/// is not read, or of a wrong value, with its path; ("grammar") counts that make it too large.
JsonGrammar json_grammar(std::string_view schema, const std::string& name = "the schema");

}  // namespace colossal::text
