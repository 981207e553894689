// A JSON Schema (https://json-schema.org, draft 2020-12) as a grammar of the texts to write for it.
//
//   auto [grammar, rule] = text::json_grammar(R"({"type": "object", "properties": {"age": {"type": "integer"}}})");
//
// Every text of the grammar is JSON that the schema allows. Not the reverse; of several ways to write a value:
// - without "type", values are of the types that keywords are about;
// - members come in the order of "properties", and none beyond them unless additionalProperties or patternProperties
//   says so or there are no properties;
// - numbers have at most 16 digits before and after the point and 2 of an exponent; with a bound no exponent; integers
//   have 18 digits unless a bound has more; of multipleOf only integers are written;
// - between tokens is nothing, a space, or a new line and up to 16 spaces: white space cannot go on for ever;
// - values of enum and const are spelt as in the schema, without spaces.
//
// docs/explanation/inference.md lists the keywords. All others are refused by name, as is a oneOf whose branches
// overlap so that the overlap cannot be excluded.
#pragma once
#include <string>
#include <string_view>

#include "colossal/text/grammar.h"

namespace colossal::text {

struct JsonGrammar {
  Grammar grammar;
  int rule;
};

/// `name` is the schema's file, for messages. Errors ("json schema"): no object of JSON, true or false; longer than 256
/// KiB or nested deeper than 100; a keyword that is not read or has a wrong value, with its path; too many choices;
/// ("grammar") counts that make it too large.
JsonGrammar json_grammar(std::string_view schema, const std::string& name = "the schema");

}  // namespace colossal::text
