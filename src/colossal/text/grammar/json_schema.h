// A JSON Schema (https://json-schema.org, draft 2020-12) as a grammar of the texts to write for it.
//
//   auto [grammar, rule] = text::json_grammar(R"({"type": "object", "properties": {"age": {"type": "integer"}}})");
//
// Every text of the grammar is JSON that the schema allows. The converse does not hold, because the grammar has only
// some of the ways to write a value:
// - Without "type", values are of the types that keywords are about.
// - Members are written in the order of "properties". Further members are allowed only if additionalProperties or
// patternProperties says so, or if there are no properties.
// - Numbers have at most 16 digits before and after the decimal point and 2 in the exponent. A bounded number has no
// exponent. Integers have up to 18 digits unless a bound has more. With multipleOf only integers are written.
// - White space is at most one space, after a comma or a colon. If the file's own "x-white-space" is "indented", there
// may be a space, or a new line and up to 16 spaces, between JSON tokens.
// - Values of a list with uniqueItems are written in the order of their constants.
// - Values of enum and const are spelled as in the schema, without spaces.
//
// docs/explanation/inference.md lists the supported keywords. Other keywords of the standard that change which values
// are valid are refused by name; unknown keywords are ignored. A oneOf whose branches overlap is refused if the overlap
// cannot be excluded.
#pragma once
#include <string>
#include <string_view>

#include "colossal/text/grammar/grammar.h"

namespace colossal::text {

/// A grammar and the rule of its start.
struct JsonGrammar {
  Grammar grammar;
  int rule;
};

/// Returns the grammar of a schema. `name` is the schema's file, for messages.
/// Errors ("json schema"): text that is not a JSON object, true or false; longer than 256 KiB or nested deeper than 100
/// levels; a keyword that is not supported or has a wrong value, with its path; too many choices; a schema without any
/// finite value ({"$ref": "#"}), with the path of the one that excludes it.
/// Errors ("grammar"): counts that make the grammar too large.
/// Cost: up to about two seconds, which AutomatonBudget and the size of a grammar bound; milliseconds for most schemas.
JsonGrammar json_grammar(std::string_view schema, const std::string& name = "the schema");

}  // namespace colossal::text
