// Random faults in JSON bodies, which follow from a seed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::serve_test {

/// Returns a random number below `count`.
inline size_t below(std::mt19937& random, size_t count) {
  return std::uniform_int_distribution<size_t>(0, count - 1)(random);
}

/// Returns the body with one to three faults: other bytes, bytes too many or too few, other values.
inline std::string with_other_bytes(std::string body, std::mt19937& random) {
  static const std::vector<std::string> parts{
      "null",      "true",        "-1",          "0",  "1e308", "1e999", "18446744073709551615",
      "\"\"",      "\"\\u0000\"", "\"\\ud800\"", "[]", "{}",    "[[]]",  "{\"$ref\": \"#\"}",
      "\xff",      "\xe2\x82",    ",",           ":",  "\"",    "\\",    "0.1",
      "[1, \"a\"]"};
  for (size_t times = below(random, 3) + 1; times > 0; --times) {
    const size_t at = below(random, body.size());
    switch (below(random, 5)) {
      case 0:
        body[at] = static_cast<char>(below(random, 256));
        break;
      case 1:
        body.erase(at, below(random, 8) + 1);
        break;
      case 2:
        body.insert(at, parts[below(random, parts.size())]);
        break;
      case 3: {  // the value after a colon
        const size_t colon = body.find(':', at);
        if (colon == std::string::npos) break;
        const size_t end = body.find_first_of(",}]", colon);
        if (end != std::string::npos) body.replace(colon + 1, end - colon - 1, parts[below(random, parts.size())]);
        break;
      }
      default:
        body.insert(at, body.substr(below(random, body.size()), below(random, 40)));
    }
    if (body.empty()) body = "{";
  }
  return body;
}

/// Returns the body with another value in place of one of its values, or of a whole object or list.
inline std::string with_other_value(const std::string& body, std::mt19937& random) {
  using nlohmann::ordered_json;
  static const std::vector<ordered_json> values{nullptr,
                                                true,
                                                -1,
                                                0,
                                                1,
                                                257,
                                                1e300,
                                                "",
                                                "a",
                                                "auto",
                                                "required",
                                                "text",
                                                "object",
                                                ordered_json::array(),
                                                ordered_json::object(),
                                                {{"$ref", "#"}},
                                                {{"type", "text"}},
                                                {1, "a"},
                                                {"a", "b"}};
  ordered_json json = ordered_json::parse(body);
  const ordered_json flat = json.flatten();
  auto chosen = flat.begin();
  std::advance(chosen, below(random, flat.size()));
  ordered_json::json_pointer place(chosen.key());
  for (size_t up = below(random, 4); up > 2 && !place.parent_pointer().empty(); --up) place = place.parent_pointer();
  json[place] = values[below(random, values.size())];
  return json.dump();
}

/// Returns a body of a generation with one to six options of other values, most of which are allowed but unusual.
inline nlohmann::ordered_json with_other_options(nlohmann::ordered_json body, std::mt19937& random) {
  using nlohmann::ordered_json;
  static const ordered_json options{
      {"temperature", {0, 1e-30, 0.01, 1, 2, 100, 1e300, -1}},
      {"top_p", {1e-30, 0.01, 1, 0, 2}},
      {"min_p", {0, 0.5, 1, 2}},
      {"top_k", {0, 1, 257, 1000000, -1}},
      {"seed", {0, -1, INT64_MAX, INT64_MIN}},
      {"stop", {"a", "\n", ordered_json::array(), ordered_json::array({"a", "b", "\u0000", "\u00e9"})}},
      {"max_tokens", {0, 1, 2, 32, 33, 1000000000, INT64_MAX}},
      {"max_completion_tokens", {1, 40}},
      {"n", {1, 2, 16, 17}},
      {"logprobs", {0, 5, 20, true, false}},
      {"top_logprobs", {0, 20}},
      {"echo", {true, false}},
      {"stream", {true, false}},
      {"stream_options", {{{"include_usage", true}}, ordered_json::object()}},
      {"ignore_eos", {true, false}},
      {"presence_penalty", {-2, 2, 1e300}},
      {"frequency_penalty", {-2, 2, -1e300}},
      {"repetition_penalty", {1e-30, 0.5, 1, 2, 1e30, 1e300}},
      {"logit_bias", {{{"65", 100}}, {{"65", -100}, {"66", -100}}, {{"256", 100}}}},
      {"response_format", {{{"type", "json_object"}}, {{"type", "text"}}}},
      {"tool_choice", {"auto", "none", "required"}},
      {"prompt", {"", "a", std::string(32, 'a'), std::string(33, 'a'), {1, 2}, {{1}, {2, 3}}, {"a", "b"}}},
      {"attention_sinks", {-1, 0, 4}}};
  for (size_t count = below(random, 6) + 1; count > 0; --count) {
    auto option = options.begin();
    std::advance(option, below(random, options.size()));
    body[option.key()] = option.value()[below(random, option.value().size())];
  }
  return body;
}

/// Returns a JSON Schema of at most `depth` levels. Some values do not fit their keywords.
inline nlohmann::ordered_json random_schema(std::mt19937& random, int depth) {
  using nlohmann::ordered_json;
  static const ordered_json keywords{
      {"type", {"string", "integer", "object", "array", "number", "null", "boolean", {"string", "null"}}},
      {"enum", {{"a", 1}, {nullptr}, ordered_json::array(), {"\u00e9", "\"", 0.5}, {{{"a", 1}}}}},
      {"const", {"a", nullptr, 1e300, ordered_json::object()}},
      {"minLength", {0, 1, 30, 1000000000}},
      {"maxLength", {0, 1, 30, 1000000000}},
      {"pattern", {"^a+$", "(a*)*$", "[", "a{100}", "^[ab]*a[ab]{14}$", "^(a|b){2,3}$", "\\d+", ""}},
      {"format", {"date", "uuid", "other"}},
      {"minimum", {0, -5, 1e300}},
      {"maximum", {0, 9, -1e300}},
      {"exclusiveMinimum", {0, 0.5}},
      {"multipleOf", {1, 0, 0.1}},
      {"minItems", {0, 2, 1000000000}},
      {"maxItems", {0, 2, 1000000000}},
      {"required", {{"a"}, {"a", "b", "c"}, ordered_json::array()}},
      {"additionalProperties", {true, false}},
      {"$ref", {"#", "#/$defs/a", "#/properties/a", "#/none", "a", "#/items"}},
      {"title", {"a", ""}}};
  static const std::vector<const char*> of_one{"items", "not", "additionalProperties"},
      of_list{"anyOf", "oneOf", "allOf", "prefixItems"}, of_map{"properties", "$defs"};
  const auto word = [&](const std::vector<const char*>& words) { return words[below(random, words.size())]; };
  const auto inner = [&] { return random_schema(random, depth - 1); };
  ordered_json schema = ordered_json::object();
  for (size_t count = below(random, 3) + 1; count > 0; --count) {
    auto keyword = keywords.begin();
    std::advance(keyword, below(random, keywords.size()));
    switch (depth == 0 ? 3 : below(random, 6)) {
      case 0:
        schema[word(of_one)] = inner();
        break;
      case 1:
        schema[word(of_list)] = {inner(), inner()};
        break;
      case 2:
        schema[word(of_map)] = {{"a", inner()}, {"b", inner()}};
        break;
      default:
        schema[keyword.key()] = keyword.value()[below(random, keyword.value().size())];
    }
  }
  if (below(random, 16) > 0) return schema;
  static const ordered_json others{nullptr, true, false, "a", 1, ordered_json::array()};
  return others[below(random, others.size())];
}

}  // namespace colossal::serve_test
