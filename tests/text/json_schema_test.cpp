// The texts that the grammar of a schema accepts, keyword by keyword, and the schemas that are refused.
#include "colossal/text/grammar/json_schema.h"

#include <gtest/gtest.h>

#include <random>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "support/thrown_message.h"

namespace colossal::text::json_schemas {
namespace {

using nlohmann::json;

/// Returns true if `text` is a complete text of the schema's grammar.
bool accepts(const std::string& schema, const std::string& text) {
  JsonGrammar made = json_grammar(schema);
  GrammarMachine machine(std::move(made.grammar), made.rule);
  int state = machine.start();
  for (const char c : text)
    if ((state = machine.next(state, static_cast<uint8_t>(c))) == GrammarMachine::kDead) return false;
  return machine.may_end(state);
}

TEST(JsonSchema, AcceptsValidTexts) {
  EXPECT_TRUE(accepts("{}", R"({"a": [1, -2.5e+10, {"b":null}], "c": "\ud83d\ude00\n"})"));
  EXPECT_TRUE(accepts("{}", "\"\xF0\x9F\x98\x80\xC3\xA9\""));
  for (const char* text : {"01", "1.", ".5", "+1", "\"\\ud83d\"", "\"\\x\"", "\"\n\"", "\"\xC0\x80\"",
                           "\"\xED\xA0\x80\"", "[1,]", "{\"a\":1,}", "{a:1}", "  1", "[  1]", "tru", "1e999", ""})
    EXPECT_FALSE(accepts("{}", text)) << text;
  const std::string person = R"({"properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer"}},
      "required": ["name"], "additionalProperties": false})";
  EXPECT_TRUE(accepts(person, R"({"name": "Ann", "age": 3})"));
  EXPECT_TRUE(accepts(person, R"({"name":"\u00e9\ud83d\ude00x"})"));
  for (const char* text : {R"({"age": 3})", R"({"age": 3, "name": "Ann"})", R"({"name": "Anna"})",
                           R"({"name": "A", "x": 1})", R"({"name": "A", "name": "B"})"})
    EXPECT_FALSE(accepts(person, text)) << text;
  const std::string open = R"({"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "boolean"}})";
  EXPECT_TRUE(accepts(open, R"({"ab": null, "a": true, "abc": true, "b": false, "": true})"));
  EXPECT_FALSE(accepts(open, R"({"a": true, "ab": true})"));
}

TEST(JsonSchema, BoundsWhiteSpace) {
  const std::string schema = R"("properties": {"a": {"items": {}}, "b": {}}, "additionalProperties": {}})";
  const std::string indented = "{\n  \"a\": [\n    1,\n    [ ]\n  ],\n  \"b\": {\n  },\n \"c\": 1\n}";
  EXPECT_TRUE(accepts(R"({"x-white-space": "indented", )" + schema, indented));
  EXPECT_TRUE(accepts(R"({"x-white-space": "indented"})", indented));
  for (const std::string& start : {std::string("{"), std::string(R"({"x-white-space": "compact", )")}) {
    EXPECT_FALSE(accepts(start + schema, indented));
    EXPECT_TRUE(accepts(start + schema, R"({"a": [1, [2,3]], "b":{"x":1, "y": 2}, "c": 1})"));
    for (const char* text : {R"({ "a":[]})", R"({"a":[] })", R"({"a":[ 1]})", R"({"a":[1 ]})", R"({"a" :[]})",
                             R"({"a":  []})", R"({"b":{ "x":1}})", "{\"a\":\n[]}"})
      EXPECT_FALSE(accepts(start + schema, text)) << text;
  }
}

// pydantic writes "discriminator" for tagged unions; MCP servers add keywords of their own.
TEST(JsonSchema, IgnoresAnnotations) {
  const std::string tagged = R"({"discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/cat"}},
      "x-order": 1, "nullable": true, "enumNames": ["a"], "example": {}, "title": "t", "note": "n", "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"], "markdownDescription": ""},
        {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}]})";
  EXPECT_TRUE(accepts(tagged, R"({"kind":"cat"})"));
  EXPECT_FALSE(accepts(tagged, R"({"kind":"cow"})"));
  EXPECT_FALSE(accepts(tagged, "null"));
  EXPECT_TRUE(accepts(R"({"not": {"type": "null", "x-a": 1}, "type": ["null", "boolean"]})", "true"));
}

TEST(JsonSchema, WritesUniqueItemsInTheOrderOfTheirConstants) {
  const std::string letters = R"({"type": "array", "uniqueItems": true, "items": {"$ref": "#/$defs/l"},
                                  "$defs": {"l": {"enum": ["a", "b", 1, 1.0]}})";
  for (const char* text : {"[]", R"(["a"])", R"(["a","b"])", R"(["a", "b", 1])", R"(["b",1])"})
    EXPECT_TRUE(accepts(letters + "}", text)) << text;
  for (const char* text : {R"(["a","a"])", "[1,1.0]", R"(["b","a"])", R"(["c"])", "[,1]"})
    EXPECT_FALSE(accepts(letters + "}", text)) << text;
  const std::string two = letters + R"(, "minItems": 1, "maxItems": 2})";
  EXPECT_FALSE(accepts(two, "[]"));
  EXPECT_TRUE(accepts(two, R"(["b"])"));
  EXPECT_TRUE(accepts(two, R"(["a",1])"));
  EXPECT_FALSE(accepts(two, R"(["a","b",1])"));
  const std::string flags = R"({"items": {"type": ["boolean", "null"]}, "uniqueItems": true, "minItems": 2})";
  EXPECT_TRUE(accepts(flags, "[false,true]"));
  EXPECT_FALSE(accepts(flags, "[true,true]"));
  EXPECT_TRUE(accepts(R"({"items": {"type": "string"}, "uniqueItems": true, "maxItems": 1})", R"(["x"])"));
  EXPECT_TRUE(accepts(R"({"items": {"type": "string"}, "uniqueItems": false})", R"(["x","x"])"));
  EXPECT_FALSE(accepts(R"({"enum": [[1, 1], [1]], "uniqueItems": true})", "[1,1]"));
}

TEST(JsonSchema, LimitsPropertyNames) {
  const std::string short_names = R"({"type": "object", "propertyNames": {"maxLength": 2, "pattern": "^[a-c]"},
      "additionalProperties": {"type": "integer"})";
  EXPECT_TRUE(accepts(short_names + "}", R"({"a":1,"cz":2})"));
  for (const char* text : {R"({"abc":1})", R"({"z":1})", R"({"":1})", R"({"a":true})"})
    EXPECT_FALSE(accepts(short_names + "}", text)) << text;
  const std::string named = short_names + R"(, "properties": {"a": {"type": "null"}, "long": {"type": "null"}}})";
  EXPECT_TRUE(accepts(named, R"({"a":null,"b":1})"));
  EXPECT_FALSE(accepts(named, R"({"a":1})"));
  EXPECT_FALSE(accepts(named, R"({"long":null})"));
  const std::string listed = R"({"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"anyOf": [
      {"enum": ["x", "y"]}, {"type": "string", "pattern": "^n\\d$", "not": {"const": "n1"}}]}}})";
  EXPECT_TRUE(accepts(listed, R"({"x":1,"y":[],"n7":{}})"));
  EXPECT_FALSE(accepts(listed, R"({"z":1})"));
  EXPECT_FALSE(accepts(listed, R"({"n1":1})"));
  EXPECT_TRUE(accepts(R"({"type": "object", "propertyNames": false})", "{}"));
  EXPECT_FALSE(accepts(R"({"type": "object", "propertyNames": false})", R"({"a":1})"));
  EXPECT_FALSE(accepts(R"({"enum": [{"a": 1}, {"bc": 1}], "propertyNames": {"minLength": 2}})", R"({"a":1})"));
}

TEST(JsonSchema, EnforcesIntegerBounds) {
  for (const auto& [least, most] : {std::pair{-12, 105}, {0, 0}, {7, 1234}, {-130, -9}, {99, 100}}) {
    JsonGrammar made = json_grammar(json{{"minimum", least}, {"maximum", most}}.dump());
    GrammarMachine machine(std::move(made.grammar), made.rule);
    for (int n = -1500; n <= 1500; ++n) {
      int state = machine.start();
      for (const char c : std::to_string(n))
        if (state >= 0) state = machine.next(state, static_cast<uint8_t>(c));
      EXPECT_EQ(state >= 0 && machine.may_end(state), least <= n && n <= most) << n << " of " << least << ", " << most;
    }
  }
}

/// Returns the error message for a schema; empty if the schema is accepted.
std::string refusal(const std::string& schema) {
  return test::thrown_message([&] {
    JsonGrammar made = json_grammar(schema, "s.json");
    const GrammarMachine machine(std::move(made.grammar), made.rule);
  });
}

TEST(JsonSchema, RefusesUnsupportedSchemas) {
  const std::pair<const char*, const char*> rows[] = {
      {"[", "s.json"},
      {R"({"properties": {"a": {"type": "string", "patern": "a"}}})", "#/properties/a: the keyword \"patern\""},
      {R"({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}})",
       "#/properties/a: the pattern (?=a)b is not"},
      {R"({"contains": {}})", "the keyword \"contains\" is not supported"},
      {R"({"properties": {"a": {"maxlength": 3}}})", "#/properties/a: the keyword \"maxlength\" is unknown"},
      {R"({"type": "array", "uniqueItems": true})", "uniqueItems is supported for items whose values"},
      {R"({"items": {"type": "string"}, "uniqueItems": true})", "uniqueItems is supported for items whose values"},
      {R"({"uniqueItems": 1})", "uniqueItems must be true or false"},
      {R"({"items": {"enum": [1, 2]}, "minItems": 3, "uniqueItems": true})", "must allow a finite value"},
      {R"({"propertyNames": {"pattern": "^x"}, "required": ["a"]})", "must allow a finite value"},
      {R"({"not": {"propertyNames": {"maxLength": 3}}})", "#/not: values of this schema must be excluded"},
      {R"({"x-white-space": "much"})", "x-white-space must be \"compact\" or \"indented\""},
      {R"({"unevaluatedItems": false})", "the keyword \"unevaluatedItems\" is not supported"},
      {R"({"type": "integer", "multipleOf": 0})", "multipleOf must be a number greater than 0"},
      {R"({"type": "integer", "multipleOf": 1009})", "multipleOf is supported if"},
      {R"({"not": {"items": {"type": "null"}}})", "#/not: values of this schema must be excluded"},
      {R"({"oneOf": [{"items": {"type": "integer"}}, {"items": {"type": "number"}}]})", "\"oneOf\" overlaps with it"},
      {R"({"type": "object", "minProperties": 2})", "minProperties must be at most"},
      {R"({"type": "text"})", "type must be object"},
      {R"({"type": []})", "type must name a type"},
      {R"({"$ref": "#/$defs/none"})", "$ref must point to"},
      {R"({"$ref": "other.json"})", "$ref must point to"},
      {R"({"items": {"$id": "a", "$ref": "#"}})", "\"$id\" with \"$ref\" is not supported"},
      {R"({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}})", "#/$defs/b: the $anchor x occurs twice"},
      {R"({"anyOf": []})", "anyOf must be a list"},
      {R"({"items": [{}], "prefixItems": []})", "items must be one schema if there are prefixItems"},
      {R"(3)", "must be a JSON object, true or false"},
      {R"({"minLength": -1})", "minLength must be a whole number"},
      {R"({"minLength": 1e300})", "minLength must be a whole number"},
      {R"({"minItems": 400000})", "at most 500000 parts"},
      {R"({"minimum": 1e30})", "must allow a finite value"},
      {R"({"minimum": "a"})", "minimum must be a number"},
      {R"(false)", "must allow a finite value"},
      {R"({"not": {}})", "must allow a finite value"},
      {R"({"items": 3})", "#/items: a schema must be an object"},
      {R"({"required": "a"})", "required must be a list"},
      {R"({"properties": []})", "properties must be an object"},
      {R"({"enum": 3})", "enum must be a list"},
      {R"({"type": "string", "type": "null"})", "two members are named"},
      // These schemas have no finite valid value.
      {R"({"enum": []})", "must allow a finite value"},
      {R"({"$ref": "#"})", "must allow a finite value"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})", "must allow a finite value"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "must allow a finite value"},
      {R"({"required": ["a"], "additionalProperties": false})", "must allow a finite value"},
  };
  for (const auto& [schema, part] : rows)
    EXPECT_NE(refusal(schema).find(part), std::string::npos) << schema << refusal(schema);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += R"({"items":)";
  EXPECT_NE(refusal(deep).find("nested too deeply"), std::string::npos);
}

/// Returns the texts that a schema allows.
std::vector<std::string> allowed_of(const std::string& schema, const std::vector<std::string>& texts) {
  std::vector<std::string> allowed;
  for (const std::string& text : texts)
    if (accepts(schema, text)) allowed.push_back(text);
  return allowed;
}

using Texts = std::vector<std::string>;

TEST(JsonSchema, ExcludesTheOverlapOfOneOf) {
  EXPECT_EQ(
      allowed_of(R"({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]})", {"1", "3", "2.5", "1.5"}),
      (Texts{"1", "2.5"}));
  EXPECT_EQ(allowed_of(R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]})",
                       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})", R"({"b":1,"a":1})"}),
            (Texts{R"({"a":1})", R"({"b":1})"}));
  EXPECT_EQ(
      allowed_of(R"({"oneOf": [{"enum": [1, "a", null]}, {"enum": ["a", true]}]})", {"1", "\"a\"", "null", "true"}),
      (Texts{"1", "null", "true"}));
  EXPECT_EQ(allowed_of(R"({"oneOf": [{"maxLength": 2, "type": "string"}, {"minLength": 2, "type": "string"}]})",
                       {"\"a\"", "\"ab\"", "\"abc\""}),
            (Texts{"\"a\"", "\"abc\""}));
}

TEST(JsonSchema, ProvesBranchesOfOneOfDisjoint) {
  const std::string schema = R"({"oneOf": [
      {"type": "object", "properties": {"kind": {"const": "leaf"}, "n": {"items": {"type": "integer"}}},
       "required": ["kind"]},
      {"type": "object", "properties": {"kind": {"const": "node"}, "n": {"items": {"$ref": "#"}}},
       "required": ["kind"]},
      {"type": "null"}]})";
  EXPECT_EQ(allowed_of(schema, {R"({"kind":"leaf","n":[1]})", R"({"kind":"node","n":[{"kind":"leaf"},null]})",
                                R"({"kind":"leaf","n":[null]})", "null"}),
            (Texts{R"({"kind":"leaf","n":[1]})", R"({"kind":"node","n":[{"kind":"leaf"},null]})", "null"}));
}

// A search that leaves values out proves no disjointness: in each pair of branches below, some values match both.
TEST(JsonSchema, ExcludesOverlapsWithSkippedValues) {
  EXPECT_EQ(allowed_of(R"({"oneOf": [{"not": {"const": [1]}}, {"type": "array"}]})", {"[1]", "[2]", "[]", "3"}),
            (Texts{"[1]", "3"}));
  EXPECT_EQ(allowed_of(R"({"oneOf": [{"not": {"enum": [{"a": 1}, 2]}}, {"type": "object"}]})",
                       {R"({"a":1})", R"({"a":2})", "{}", "2", "3"}),
            (Texts{R"({"a":1})", "3"}));
  EXPECT_EQ(allowed_of(R"({"oneOf": [{"type": "integer", "not": {"minimum": 10, "multipleOf": 2}},
                                     {"type": "integer", "minimum": 10}]})",
                       {"9", "10", "11", "12"}),
            (Texts{"9", "10", "12"}));
  // The same for a member, and for a schema that is the target of a reference.
  EXPECT_EQ(
      allowed_of(R"({"oneOf": [{"$ref": "#/$defs/a"}, {"properties": {"x": {"type": "array"}}, "required": ["x"]}],
                           "type": "object",
                           "$defs": {"a": {"properties": {"x": {"not": {"const": [1]}}}, "required": ["x"]}}})",
                 {R"({"x":[1]})", R"({"x":[2]})", R"({"x":3})"}),
      (Texts{R"({"x":[1]})", R"({"x":3})"}));
  // 10^30 is a multiple of 2, but it is too large for the computation.
  EXPECT_EQ(allowed_of(R"({"oneOf": [{"const": 1e30}, {"type": "number", "multipleOf": 2}]})", {"1e30", "3", "4"}),
            (Texts{"4"}));
}

// "items" cannot be excluded. It does not have to be if other conditions leave no value.
TEST(JsonSchema, ReadsExclusionsLast) {
  const std::string schema = R"({"anyOf": [{"type": "integer", "not": {"items": {"type": "null"}},
                                            "$ref": "#/$defs/text"}, {"type": "null"}],
                                 "$defs": {"text": {"type": "string"}}})";
  EXPECT_EQ(allowed_of(schema, {"null", "1", R"("a")"}), (Texts{"null"}));
}

TEST(JsonSchema, ResolvesReferencesAgainstTheirBase) {
  // "#/$defs/x" is one schema below the $id and another one outside.
  const std::string schema =
      R"({"$id": "http://a/root.json", "type": "array", "items": {"$ref": "#/$defs/inner"}, "$defs": {
      "x": {"const": "outer"}, "there": {"$anchor": "here", "const": "anchor"},
      "inner": {"$id": "inner.json", "anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "root.json#here"},
                                                  {"$ref": "other%2Ejson"}],
                "$defs": {"x": {"const": "inner"}}},
      "other": {"$id": "http://a/other%2Ejson", "const": "other"}}})";
  EXPECT_EQ(allowed_of(schema, {R"(["outer"])", R"(["inner"])", R"(["anchor"])", R"(["other"])"}),
            (Texts{R"(["inner"])", R"(["anchor"])", R"(["other"])"}));
  EXPECT_TRUE(accepts(R"({"$ref": "#/odd/a~1b%25c", "odd": {"a/b%c": {"type": "null"}}})", "null"));
}

TEST(JsonSchema, RefusesLongBases) {
  const auto of_length = [](size_t length) { return json{{"$id", "a:/" + std::string(length - 3, 'x')}}; };
  EXPECT_EQ(refusal(of_length(2000).dump()), "");
  EXPECT_NE(
      refusal(of_length(2001).dump()).find("$id must be a URI of at most 2000 bytes when it is resolved: got 2001"),
      std::string::npos);
  // The limit applies to the URI after it is resolved.
  json nested = of_length(1000);
  nested["$id"] = nested["$id"].get<std::string>() + "/";
  nested["$defs"]["a"]["$id"] = std::string(998, 'y');
  EXPECT_EQ(refusal(nested.dump()), "");
  nested["$defs"]["a"]["$id"] = std::string(1000, 'y');
  EXPECT_NE(refusal(nested.dump()).find("#/$defs/a: $id must be a URI of at most 2000 bytes"), std::string::npos);
}

TEST(JsonSchema, KeepsAllDigitsOfConstants) {
  EXPECT_TRUE(accepts(R"({"const": 12345678901234567890123})", "12345678901234567890123"));
  EXPECT_FALSE(accepts(R"({"const": 12345678901234567890123})", "1.2345678901234568e+22"));
  EXPECT_TRUE(accepts(R"({"enum": [{"a": [0.10]}]})", R"({"a":[0.10]})"));
  // The two numbers are equal as doubles, but different.
  EXPECT_NE(refusal(R"({"allOf": [{"const": 12345678901234567890123}, {"const": 12345678901234567890124}]})"), "");
  EXPECT_TRUE(accepts(R"({"allOf": [{"const": 10e1}, {"const": 100.0}]})", "10e1"));
}

TEST(JsonSchema, CombinesConditions) {
  const std::string all = R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "additionalProperties": false},
                                        {"properties": {"a": {"minimum": 3}, "b": {}}, "required": ["a"]}]})";
  EXPECT_EQ(allowed_of(all, {R"({"a":3})", R"({"a":2})", R"({"a":3.5})", R"({"a":3,"b":1})", "{}"}),
            (Texts{R"({"a":3})"}));
  const std::string conditional = R"({"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {}},
      "if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}})";
  EXPECT_EQ(allowed_of(conditional, {R"({"a":1})", R"({"a":1,"b":0})", R"({"a":2})", "{}"}),
            (Texts{R"({"a":1,"b":0})", R"({"a":2})", "{}"}));
  EXPECT_EQ(allowed_of(R"({"enum": [1, 5, "a", "abc", [1]], "minimum": 2, "minLength": 2, "items": {"type": "null"}})",
                       {"1", "5", "\"a\"", "\"abc\"", "[1]"}),
            (Texts{"5", "\"abc\""}));
  EXPECT_EQ(
      allowed_of(R"({"type": "string", "maxLength": 1, "not": {"enum": ["a", "b"]}})", {"\"a\"", "\"c\"", "\"\""}),
      (Texts{"\"c\"", "\"\""}));
  EXPECT_EQ(
      allowed_of(R"({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1, "minProperties": 1})",
                 {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}),
      (Texts{R"({"a":1})", R"({"b":1})"}));
}

TEST(JsonSchema, ReadsPatterns) {
  const auto accepted = [](const std::string& pattern, const Texts& texts) {
    return allowed_of(json{{"type", "string"}, {"pattern", pattern}}.dump(), texts);
  };
  EXPECT_EQ(accepted("^a+b?$", {"\"aab\"", "\"b\"", "\"xab\"", "\"a\""}), (Texts{"\"aab\"", "\"a\""}));
  EXPECT_EQ(accepted("b|c", {"\"abd\"",
                             "\"\xC3\xA9"
                             "c\"",
                             "\"aa\""}),
            (Texts{"\"abd\"",
                   "\"\xC3\xA9"
                   "c\""}));
  EXPECT_EQ(accepted("^[^a-y\\d]{2}$", {"\"zz\"", "\"\xF0\x9F\x98\x80Z\"", "\"z1\"", "\"zzz\""}),
            (Texts{"\"zz\"", "\"\xF0\x9F\x98\x80Z\""}));
  EXPECT_EQ(accepted("^\\x22\\n.$", {R"("\"\nx")", R"("\"\n\n")", "\"x\""}), (Texts{R"("\"\nx")"}));
  EXPECT_EQ(accepted("^(?:ab){2,3}$", {"\"ab\"", "\"abab\"", "\"ababab\"", "\"abababab\""}),
            (Texts{"\"abab\"", "\"ababab\""}));
  const std::string names =
      R"({"type": "object", "patternProperties": {"^x": {"type": "null"}, "y$": {"type": ["null", "integer"]}},
                                "properties": {"xa": {}}, "additionalProperties": {"type": "boolean"}})";
  EXPECT_EQ(allowed_of(names, {R"({"xa":null})", R"({"xa":1})", R"({"xb":1})", R"({"xy":1})", R"({"xy":null})",
                               R"({"ay":1})", R"({"a":true})", R"({"a":null})"}),
            (Texts{R"({"xa":null})", R"({"xy":null})", R"({"ay":1})", R"({"a":true})"}));
}

TEST(JsonSchema, EnforcesNumberBounds) {
  EXPECT_EQ(allowed_of(R"({"type": "number", "exclusiveMinimum": -0.5, "maximum": 1.25})",
                       {"-0.5", "-0.49", "0", "0.0", "1.25", "1.26", "1.2499", "2", "-1", "01", "1e0"}),
            (Texts{"-0.49", "0", "0.0", "1.25", "1.2499"}));
  EXPECT_EQ(allowed_of(R"({"multipleOf": 1.5, "minimum": -4})", {"3", "-3", "-6", "1", "999999999999999999"}),
            (Texts{"3", "-3", "999999999999999999"}));
  EXPECT_EQ(allowed_of(R"({"type": "number", "not": {"type": "integer"}})", {"1", "1.0", "1.5", "-0.25"}),
            (Texts{"1.5", "-0.25"}));
}

TEST(JsonSchema, FollowsLongAndCircularReferences) {
  EXPECT_TRUE(accepts(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "null"));
  json chain{{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 5000; ++i) chain["$defs"][std::to_string(i)] = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
  chain["$defs"]["5000"] = {{"type", "null"}};
  EXPECT_TRUE(accepts(chain.dump(), "null"));
  for (auto& [name, link] : chain["$defs"].items())
    if (link.contains("$ref")) link = {{"oneOf", {{{"allOf", {link}}}, {{"type", "string"}}}}};
  EXPECT_NE(refusal(chain.dump()), "");  // choices are nested deeper than the limit
}

// The schema has 2^30 combinations of choices, none of which is possible.
TEST(JsonSchema, LimitsChoices) {
  std::string schema = R"({"type": "object", "maxProperties": 29, "allOf": [{})";
  for (const char first : {'a', 'b', 'c'})
    for (char name = 'a'; name < 'k'; ++name)
      schema += std::string(R"(, {"anyOf": [{"required": [")") + first + name + R"(1"]}, {"required": [")" + first +
                name + R"(2"]}]})";
  EXPECT_NE(refusal(schema + "]}").find("make the schema simpler"), std::string::npos) << refusal(schema + "]}");
}

// Each pattern has an automaton of its own, to examine the value. Without a limit, a schema of 256 KiB takes an hour.
TEST(JsonSchema, LimitsPatternsTogether) {
  const auto schema_of = [](int patterns) {
    json schema{{"enum", {"x"}}, {"allOf", json::array()}};
    for (int i = 0; i < patterns; ++i)
      schema["allOf"].push_back({{"pattern", "x|(a|b)*a(a|b){8}" + std::to_string(i)}});
    return schema.dump();
  };
  EXPECT_NO_THROW(json_grammar(schema_of(3)));
  const std::string message = refusal(schema_of(100));
  EXPECT_NE(message.find("patterns of a schema must be simpler, or fewer"), std::string::npos) << message;
}

TEST(JsonSchema, RefusesSchemasWithoutAFiniteValue) {
  const auto says = [](const std::string& schema, const std::string& path) {
    const std::string message = refusal(schema);
    EXPECT_NE(message.find("s.json " + path + ": a schema must allow a finite value"), std::string::npos) << message;
  };
  says(R"({"$ref": "#"})", "#");
  says("false", "#");
  says(R"({"properties": {"next": {"$ref": "#"}}, "required": ["next"]})", "#");
  says(R"({"properties": {"a": {"$ref": "#/$defs/a"}, "b": {}}, "required": ["b", "a"],
           "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "minItems": 1}}})",
       "#/$defs/a");
  says(R"({"type": "array", "prefixItems": [{"type": "null"}, {"type": "string", "minLength": 3, "maxLength": 2}],
           "minItems": 2})",
       "#/prefixItems/1");
  EXPECT_TRUE(accepts(R"({"properties": {"next": {"$ref": "#"}}})", "{}"));
  EXPECT_TRUE(accepts(R"({"items": false})", "[]"));
}

// Lists can be read in two ways at every depth: 2^depth ways, of which only some are followed.
TEST(JsonSchema, LimitsAmbiguity) {
  const std::string schema = R"({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "minItems": 1}]})";
  EXPECT_TRUE(accepts(schema, std::string(40, '[') + std::string(40, ']')));
}

}  // namespace
}  // namespace colossal::text::json_schemas
