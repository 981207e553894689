// JSON Schema of draft 7: keywords, and schemas and texts that must not crash or hang the program.
#include "colossal/text/verifiers/json_schema_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thrown_message.h"

namespace colossal::text::json_schema_check_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string fault(const char* schema, const json& value) {
  return JsonSchemaCheck(json::parse(schema)).fault_of(value);
}
bool is_valid(const char* schema, const char* value) { return fault(schema, json::parse(value)).empty(); }

std::string refusal(const std::string& schema) {
  return test::thrown_message([&] { JsonSchemaCheck check(json::parse(schema)); });
}

TEST(JsonSchemaCheck, ReadsTheKeywordsOfDraft7) {
  struct Row {
    const char *schema, *valid, *invalid;
  };
  for (const Row& row : {
           Row{R"({"type": ["integer", "null"]})", "3", "3.5"},
           Row{R"({"type": "number"})", "1e3", "\"1\""},
           Row{R"({"type": "integer", "multipleOf": 3.0})", "6.0", "6.5"},
           Row{R"({"minimum": 0})", "18446744073709551615", "-1"},
           Row{R"({"const": 1})", "1.0", "1.5"},
           Row{R"({"enum": ["a", 2]})", "2", "3"},
           Row{R"({"const": {"a": [1]}})", R"({"a": [1]})", R"({"a": [2]})"},
           Row{R"({"multipleOf": 0.5})", "2.5", "2.4"},
           Row{R"({"minimum": 2, "exclusiveMaximum": 3})", "2", "3"},
           Row{R"({"maxLength": 2})", "\"\\u00e4\\u00e4\"", "\"abc\""},
           Row{R"({"pattern": "^[a-c]+$"})", "\"abc\"", "\"abd\""},
           Row{R"({"items": [{"type": "integer"}], "additionalItems": false})", "[1]", "[1, 2]"},
           Row{R"({"items": {"type": "integer"}, "uniqueItems": true})", "[1, 2]", "[1, 1]"},
           Row{R"({"contains": {"const": 5}, "minItems": 1, "maxItems": 2})", "[4, 5]", "[4]"},
           Row{R"({"required": ["a"], "maxProperties": 1})", R"({"a": 1})", R"({"b": 1})"},
           Row{R"({"properties": {"a": true, "b": false}})", R"({"a": 1})", R"({"b": 1})"},
           Row{R"({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": false})",
               R"({"x-a": "s"})", R"({"y": "s"})"},
           Row{R"({"propertyNames": {"maxLength": 2}})", R"({"ab": 1})", R"({"abc": 1})"},
           Row{R"({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}})", R"({"a": 1, "b": 2})", R"({"c": 1})"},
           Row{R"({"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"minimum": 1}})", "\"a\"", "0"},
           Row{R"({"allOf": [{"minimum": 1}], "anyOf": [{"maximum": 5}, {"const": 9}]})", "9", "8"},
           Row{R"({"oneOf": [{"minimum": 1}, {"maximum": 5}]})", "0", "3"},
           Row{R"({"not": {"type": "null"}})", "1", "null"},
           Row{R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["sub"],
                   "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}})",
               R"({"sub": [{"sub": []}]})", R"({"sub": [{"sub": [{}]}]})"},
           Row{"true", "1", nullptr},
           Row{"false", nullptr, "1"},
       }) {
    if (row.valid) EXPECT_TRUE(is_valid(row.schema, row.valid)) << row.schema << " " << row.valid;
    if (row.invalid) EXPECT_FALSE(is_valid(row.schema, row.invalid)) << row.schema << " " << row.invalid;
  }
}

TEST(JsonSchemaCheck, NamesTheFirstFaultAndItsPath) {
  EXPECT_THAT(fault(R"({"properties": {"a": {"items": {"type": "integer"}}}})", {{"a", {1, "x"}}}),
              AllOf(HasSubstr("<root>[a][1]: "), HasSubstr("type")));
}

TEST(JsonSchemaCheck, IgnoresFormats) {
  EXPECT_TRUE(is_valid(R"({"format": "date"})", "3"));
  EXPECT_TRUE(is_valid(R"({"properties": {"format": {"type": "integer"}}})", R"({"format": 3})"));
  EXPECT_FALSE(is_valid(R"({"properties": {"format": {"type": "integer"}}})", R"({"format": "date"})"));
}

TEST(JsonSchemaCheck, RefusesWhatItWouldIgnore) {
  EXPECT_THAT(refusal(R"({"properties": {"a": {"prefixItems": [true]}}})"),
              HasSubstr("[json schema] #/properties/a: prefixItems is not a keyword of draft 7"));
  EXPECT_THAT(refusal(R"({"$defs": {"x": {"allOf": [{"unevaluatedProperties": false}]}}})"),
              HasSubstr("#/$defs/x/allOf/0: unevaluatedProperties"));
  EXPECT_EQ(refusal(R"({"properties": {"prefixItems": {}}, "enum": [{"prefixItems": 1}]})"), "");
  EXPECT_THAT(refusal(R"({"type": "text"})"), HasSubstr("[json schema]"));
  EXPECT_THAT(refusal(R"({"required": 3})"), HasSubstr("[json schema]"));
  EXPECT_EQ(refusal(R"({"multipleOf": 0})"), "[json schema] #: multipleOf must be a number greater than 0: got 0");
}

TEST(JsonSchemaCheck, RefusesReferencesToOtherPlaces) {
  for (const char* reference : {"other.json", "http://127.0.0.1/x#/a", "#/$defs/none", "#name", "#/~"})
    EXPECT_THAT(refusal(json{{"$ref", reference}}.dump()), HasSubstr("$ref must point to a schema of this schema"))
        << reference;
  EXPECT_THAT(refusal(R"({"not": {"$ref": 3}})"), HasSubstr("#/not: $ref must point"));
}

// valijson would recurse until the stack ends.
TEST(JsonSchemaCheck, RefusesReferencesWithoutEnd) {
  for (const char* schema :
       {R"({"$ref": "#"})", R"({"allOf": [{"$ref": "#"}]})", R"({"not": {"anyOf": [true, {"$ref": "#"}]}})",
        R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}})",
        R"({"properties": {"x": {"if": {"$ref": "#/properties/x"}}}})", R"({"dependencies": {"a": {"$ref": "#"}}})"})
    EXPECT_THAT(refusal(schema), HasSubstr("must not refer to one another without end")) << schema;
  EXPECT_EQ(refusal(R"({"properties": {"next": {"$ref": "#"}}, "items": {"$ref": "#"}})"), "");
}

TEST(JsonSchemaCheck, RefusesDeepSchemas) {
  std::string schema = "true";
  for (int i = 0; i < 200; ++i) schema = "{\"not\": " + schema + "}";
  EXPECT_THAT(refusal(schema), HasSubstr("nested too deeply, more than 100 levels"));
}

// std::regex would end the process on the first two, and take for ever on the third.
TEST(JsonSchemaCheck, SearchesLongTexts) {
  const std::string text(1 << 20, 'a');
  EXPECT_EQ(fault(R"({"pattern": "^(a|b)*$"})", text), "");
  EXPECT_EQ(fault(R"({"patternProperties": {"^(a|b)*$": true}, "additionalProperties": false})", {{text, 1}}), "");
  EXPECT_THAT(fault(R"({"pattern": "^(a+)+$"})", std::string(60, 'a') + "b"), HasSubstr("match limit exceeded"));
}

}  // namespace
}  // namespace colossal::text::json_schema_check_test
