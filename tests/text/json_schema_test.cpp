// Texts drawn at random from the grammar of a schema are JSON that it allows, by a validator that shares nothing with
// the grammar; with tokenizers of several kinds.
#include "colossal/text/json_schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "colossal/base/error.h"
#include "colossal/text/byte_tokenizer.h"
#include "colossal/text/token_mask.h"
#include "made_files.h"
#include "support/temporary_folder.h"

namespace colossal::text::json_schemas {
namespace {

using nlohmann::json;

/// What the standard says of the keywords that are read, straight.
bool is_valid(const json& v, const json& s, const json& whole) {
  if (s.is_boolean()) return s.get<bool>();
  const auto in = [&](const json& part) { return is_valid(v, part, whole); };
  if (s.contains("$ref")) {
    const std::string at = s["$ref"].get<std::string>().substr(1);
    if (!in(whole.at(json::json_pointer(at)))) return false;
  }
  for (const char* any : {"anyOf", "oneOf", "allOf"})
    if (s.contains(any) && std::none_of(s[any].begin(), s[any].end(), in)) return false;
  if (s.contains("const") && v != s["const"]) return false;
  if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end()) return false;
  const auto is_type = [&](const json& t) {
    const bool whole_number = v.is_number() && std::floor(v.get<double>()) == v.get<double>();
    return (t == "number" && v.is_number()) || (t == "integer" && whole_number) || t == std::string(v.type_name());
  };
  const json types = s.value("type", json::array());
  if (s.contains("type") && !(types.is_array() ? std::any_of(types.begin(), types.end(), is_type) : is_type(types)))
    return false;
  if (v.is_number_integer()) {
    const auto n = v.get<int64_t>();
    if (s.contains("minimum") && n < s["minimum"].get<double>()) return false;
    if (s.contains("maximum") && n > s["maximum"].get<double>()) return false;
    if (s.contains("exclusiveMinimum") && n <= s["exclusiveMinimum"].get<double>()) return false;
    if (s.contains("exclusiveMaximum") && n >= s["exclusiveMaximum"].get<double>()) return false;
  }
  if (v.is_string()) {
    const auto text = v.get<std::string>();
    const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (length < s.value("minLength", 0) || length > s.value("maxLength", 1 << 30)) return false;
  }
  if (v.is_array()) {
    const auto size = static_cast<int>(v.size());
    if (size < s.value("minItems", 0) || size > s.value("maxItems", 1 << 30)) return false;
    const json front = s.value("prefixItems", json::array());
    for (size_t i = 0; i < v.size(); ++i)
      if (!is_valid(v[i], i < front.size() ? front[i] : s.value("items", json(true)), whole)) return false;
  }
  if (v.is_object()) {
    const json properties = s.value("properties", json::object());
    for (const json& name : s.value("required", json::array()))
      if (!v.contains(name.get<std::string>())) return false;
    for (const auto& [name, value] : v.items())
      if (!is_valid(value, properties.contains(name) ? properties[name] : s.value("additionalProperties", json(true)),
                    whole))
        return false;
  }
  return true;
}

using Random = std::mt19937_64;

json random_schema(Random& random, int depth) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const auto inner = [&] { return random_schema(random, depth - 1); };
  switch (below(depth > 0 ? 11 : 6)) {
    case 0:
      return {{"type", "string"}, {"minLength", below(3)}, {"maxLength", 2 + below(5)}};
    case 1: {
      const int64_t least = static_cast<int64_t>(random() % 4000) - 2000;
      return {{"type", "integer"}, {"minimum", least}, {"exclusiveMaximum", least + 1 + below(3000)}};
    }
    case 2:
      return {{"enum", {1, "two\n\"\\", nullptr, 2.5, {{"a", {1, "\xC3\xA9"}}}}}};
    case 3:
      return {{"type", {"number", "null", "boolean"}}};
    case 4:
      return {{"const", "fixed"}};
    case 5:
      return json{{"type", "integer"}, {below(2) ? "minimum" : "exclusiveMaximum", below(100) - 50.5}};
    case 6:
      return {{"type", "array"}, {"items", inner()}, {"minItems", below(3)}, {"maxItems", 2 + below(3)}};
    case 7:
      return {{"prefixItems", {inner(), inner()}}, {"items", inner()}, {"minItems", below(4)}};
    case 8:
      return {{"anyOf", {inner(), inner(), false}}};
    case 9:
      return {{"$ref", "#/$defs/tree"}};
    default: {
      json s{{"type", "object"}, {"properties", {{"a", inner()}, {"ab", inner()}, {"\"q", inner()}}}};
      if (below(2)) s["required"] = {"ab", "else"};
      if (below(2)) s["additionalProperties"] = inner();
      return s;
    }
  }
}

/// Tokens drawn from those that the masks allow, each alike, to the end or 3000 tokens; "" at the latter.
std::string drawn(TokenMasks& masks, const Tokenizer& tokenizer, Random& random) {
  std::vector<int64_t> ids;
  for (int state = masks.start(); ids.size() < 3000;) {
    const std::vector<uint64_t>& allowed = masks.allowed(state);
    std::vector<int64_t> choices;
    for (int64_t id = 0; id < masks.vocabulary_size(); ++id)
      if (allowed[static_cast<size_t>(id) / 64] >> (id % 64) & 1) choices.push_back(id);
    EXPECT_FALSE(choices.empty()) << tokenizer.decode(ids);
    if (choices.empty()) return "";
    const int64_t id = choices[random() % choices.size()];
    state = masks.next(state, id);
    if (state == TokenMasks::kEnded) {
      TextStream stream(tokenizer);  // as commands print them
      std::string text;
      for (const int64_t one : ids) text += stream.push(one);
      return text + stream.finish();
    }
    ids.push_back(id);
  }
  return "";
}

TokenMasks masks_of(const json& schema, const Tokenizer& tokenizer, int64_t end_id) {
  JsonGrammar made = json_grammar(schema.dump());
  return {std::move(made.grammar), made.rule, TokenTrie(tokenizer), {end_id}};
}

void expect_valid(const Tokenizer& tokenizer, int64_t end_id, int schemas) {
  Random random(7);
  int ended = 0;
  for (int i = 0; i < schemas; ++i) {
    json schema = random_schema(random, 3);
    schema["$defs"]["tree"] = {
        {"type", "object"},
        {"properties",
         {{"name", {{"type", "string"}}}, {"under", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}}}}},
        {"required", {"name"}}};
    TokenMasks masks = masks_of(schema, tokenizer, end_id);
    for (int k = 0; k < 4; ++k) {
      const std::string text = drawn(masks, tokenizer, random);
      if (text.empty()) continue;
      ++ended;
      const json value = json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << schema << "\n" << text;
      ASSERT_TRUE(is_valid(value, schema, schema)) << schema << "\n" << text;
    }
  }
  EXPECT_GT(ended, schemas * 3);
}

TEST(JsonSchema, RandomTextsOfBytesAreValid) { expect_valid(ByteTokenizer(), 256, 150); }

std::string byte_piece(int byte) {
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", byte);
  return made::piece(name, 0, 6);
}

TEST(JsonSchema, RandomTextsOfSentencePieceAreValid) {
  const test::TemporaryFolder folder;
  std::string file = made::kControls;
  for (int byte = 0; byte < 256; ++byte) file += byte_piece(byte);
  for (const char* text : {"{\"", "\":", "\xE2\x96\x81", "\xE2\x96\x81{", "\",\xE2\x96\x81\"", "}}", "]}", "true", "10",
                           "a\"", "\xC3\xA9", "\\u"})
    file += made::piece(text, -1);
  file += made::trainer(2, made::number(35, 1));
  expect_valid(*make_tokenizer(folder.write("a.model", file)), 2, 60);
}

TEST(JsonSchema, RandomTextsOfRanksAreValid) {
  const test::TemporaryFolder folder;
  folder.write("encoding.json", R"({"pattern": "\\p{L}+|."})");
  const auto tokenizer = make_tokenizer(folder.write("a.tiktoken", made::ranks()));
  expect_valid(*tokenizer, 258, 60);  // "aab" ends here: an end token is never text
}

/// Whether all of `text` is of the schema's grammar.
bool accepts(const std::string& schema, const std::string& text) {
  JsonGrammar made = json_grammar(schema);
  GrammarMachine machine(std::move(made.grammar), made.rule);
  int state = machine.start();
  for (const char c : text)
    if ((state = machine.next(state, static_cast<uint8_t>(c))) == GrammarMachine::kDead) return false;
  return machine.may_end(state);
}

TEST(JsonSchema, AcceptsWhatIsValid) {
  EXPECT_TRUE(accepts("{}", R"({"a": [1, -2.5e+10, {"b":null}], "c": "\ud83d\ude00\n"})"));
  EXPECT_TRUE(accepts("{}", "{\n  \"a\": [\n    1\n  ]\n}"));
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

TEST(JsonSchema, IntegersKeepTheirBounds) {
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

/// The message that refuses a schema.
std::string refusal(const std::string& schema) {
  try {
    JsonGrammar made = json_grammar(schema, "s.json");
    const GrammarMachine machine(std::move(made.grammar), made.rule);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(JsonSchema, RefusesWhatItCannotKeep) {
  const std::pair<const char*, const char*> rows[] = {
      {"[", "s.json"},
      {R"({"properties": {"a": {"type": "string", "pattern": "a"}}})", "#/properties/a: the keyword \"pattern\""},
      {R"({"not": {}})", "\"not\" is not read"},
      {R"({"type": "integer", "multipleOf": 3})", "multipleOf"},
      {R"({"type": "number", "minimum": 3})", "\"minimum\" is read of type integer only"},
      {R"({"type": "integer", "minLength": 3})", "\"minLength\" is read of type string only"},
      {R"({"type": "text"})", "type must be object"},
      {R"({"type": []})", "type must name a type"},
      {R"({"$ref": "#/$defs/none"})", "$ref must point to"},
      {R"({"$ref": "other.json"})", "$ref must point to"},
      {R"({"$ref": "#", "minLength": 1})", "beside \"$ref\""},
      {R"({"anyOf": []})", "anyOf must be a list"},
      {R"({"allOf": [{}, {}]})", "allOf is read of one schema only"},
      {R"({"items": [{}]})", "prefixItems"},
      {R"({"minLength": -1})", "minLength must be a whole number"},
      {R"({"minLength": 1e300})", "minLength must be a whole number"},
      {R"({"minItems": 400000})", "at most 500000 parts"},
      {R"({"minimum": 1e30})", "minimum must be a number in"},
      {R"({"items": 3})", "#/items: a schema must be an object"},
      {R"({"required": "a"})", "required must be a list"},
      {R"({"properties": []})", "properties must be an object"},
      {R"({"enum": 3})", "enum must be a list"},
      {R"({"type": "string", "type": "null"})", "two members are named"},
      // nothing finite is valid
      {R"({"enum": []})", "no finite text"},
      {R"({"$ref": "#"})", "no finite text"},
      {R"({"minimum": 3, "maximum": 2})", "no finite text"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no finite text"},
      {R"({"required": ["a"], "additionalProperties": false})", "no finite text"},
  };
  for (const auto& [schema, part] : rows)
    EXPECT_NE(refusal(schema).find(part), std::string::npos) << schema << refusal(schema);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += R"({"items":)";
  EXPECT_NE(refusal(deep).find("nested too deeply"), std::string::npos);
}

TEST(JsonSchema, FollowsLongAndRoundReferences) {
  EXPECT_TRUE(accepts(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "null"));
  json chain{{"$ref", "#/$defs/0"}};
  for (int i = 0; i < 5000; ++i) chain["$defs"][std::to_string(i)] = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
  chain["$defs"]["5000"] = {{"type", "null"}};
  EXPECT_TRUE(accepts(chain.dump(), "null"));
}

// Lists that can be read in two ways at every depth: 2^depth ways, of which some are followed.
TEST(JsonSchema, ManyWaysEndNevertheless) {
  const std::string schema = R"({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "minItems": 1}]})";
  EXPECT_TRUE(accepts(schema, std::string(40, '[') + std::string(40, ']')));
}

class FewBytes final : public Tokenizer {
 public:
  explicit FewBytes(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<int64_t> encode(std::string_view) const override { return {}; }
  std::string piece(int64_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  int64_t vocabulary_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int64_t end_id() const override { return 0; }

 private:
  std::vector<std::string> pieces_;
};

TEST(TokenMasks, BytesWithoutATokenAreNotWritten) {
  // no token for c: "bc" would be a beginning without an end
  const FewBytes tokenizer({"", "\"", "a", "b", "bc", "ab"});
  JsonGrammar made = json_grammar(R"({"enum": ["ab", "bcd", "a"]})");
  TokenMasks masks(std::move(made.grammar), made.rule, TokenTrie(tokenizer), {0});
  EXPECT_EQ(masks.allowed(masks.start())[0], 0b10u);
  int state = masks.next(masks.start(), 1);
  EXPECT_EQ(masks.allowed(state)[0], 0b100100u);
  state = masks.next(state, 5);
  EXPECT_EQ(masks.allowed(state)[0], 0b10u);
  EXPECT_THROW(masks.next(state, 4), Error);
  state = masks.next(state, 1);
  EXPECT_EQ(masks.allowed(state)[0], 0b1u);
  EXPECT_EQ(masks.next(state, 0), TokenMasks::kEnded);
  EXPECT_EQ(masks.allowed(TokenMasks::kEnded)[0], 0b1u);
  made = json_grammar(R"({"type": "object"})");
  EXPECT_THROW(TokenMasks(std::move(made.grammar), made.rule, TokenTrie(tokenizer), {0}), Error);
  made = json_grammar("{}");
  EXPECT_THROW(TokenMasks(std::move(made.grammar), made.rule, TokenTrie(tokenizer), {9}), Error);
}

}  // namespace
}  // namespace colossal::text::json_schemas
