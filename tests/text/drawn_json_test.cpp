// Texts that are drawn at random from the grammar of a schema are valid JSON for the schema. The validator here shares
// no code with the grammar. Tokenizers of several kinds are used.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "colossal/base/json.h"
#include "colossal/text/grammar/json_schema.h"
#include "colossal/text/grammar/token_mask.h"
#include "colossal/text/tokenizers/byte.h"
#include "made_files.h"
#include "support/temporary_folder.h"

namespace colossal::text::drawn_json_test {
namespace {

using nlohmann::json;

/// Returns true if `v` is valid; implements the supported keywords directly from the standard.
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

/// Draws tokens uniformly from those that the masks allow, up to the end of the text. Returns "" if it does not end
/// within 3000 tokens.
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
      TextStream stream(tokenizer);  // commands print texts through it
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
  return {token_grammar(std::move(made.grammar), made.rule, std::make_shared<const TokenTrie>(tokenizer)), {end_id}};
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

TEST(DrawnJson, FitsItsSchemaWithTokensOfBytes) { expect_valid(ByteTokenizer(), 256, 150); }

std::string byte_piece(int byte) {
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", byte);
  return made::piece(name, 0, 6);
}

TEST(DrawnJson, FitsItsSchemaWithTokensOfSentencePiece) {
  const test::TemporaryFolder folder;
  std::string file = made::kControls;
  for (int byte = 0; byte < 256; ++byte) file += byte_piece(byte);
  for (const char* text : {"{\"", "\":", "\xE2\x96\x81", "\xE2\x96\x81{", "\",\xE2\x96\x81\"", "}}", "]}", "true", "10",
                           "a\"", "\xC3\xA9", "\\u"})
    file += made::piece(text, -1);
  file += made::trainer(2, made::number(35, 1));
  expect_valid(*make_tokenizer(folder.write("a.model", file)), 2, 60);
}

TEST(DrawnJson, FitsItsSchemaWithTokensOfRanks) {
  const test::TemporaryFolder folder;
  folder.write("encoding.json", R"({"pattern": "\\p{L}+|."})");
  const auto tokenizer = make_tokenizer(folder.write("a.tiktoken", made::ranks()));
  expect_valid(*tokenizer, 258, 60);  // the end token is "aab" here: an end token is never text
}

}  // namespace
}  // namespace colossal::text::drawn_json_test
