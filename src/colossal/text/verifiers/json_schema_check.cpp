#include "colossal/text/verifiers/json_schema_check.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <regex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/regex.h"

// valijson searches texts of the model with std::regex, which crashes on long texts, because it recurses for each
// character, and has no limit on backtracking. Within namespace valijson these declarations hide those of std.
namespace valijson::std {
using namespace ::std;

struct regex {
  explicit regex(const string& pattern) : compiled(pattern, colossal::text::Dialect::Rust) {}
  colossal::text::Regex compiled;
};

struct smatch {
  struct Group {
    string text;
    const string& str() const { return text; }
  };
  const Group& operator[](size_t i) const { return groups[i]; }
  vector<Group> groups;
};

inline bool regex_search(const string& text, const regex& pattern) {
  return !pattern.compiled.find_groups(colossal::text::valid_utf8(text)).empty();
}
// The patterns that valijson matches with whole texts have ^ and $ at their ends.
inline bool regex_match(const string& text, const regex& pattern) { return regex_search(text, pattern); }
inline bool regex_match(const string& text, smatch& match, const regex& pattern) {
  match.groups.clear();
  for (const auto& [begin, end] : pattern.compiled.find_groups(text))
    match.groups.push_back({text.substr(begin, end - begin)});
  return !match.groups.empty();
}
}  // namespace valijson::std

#define VALIJSON_USE_EXCEPTIONS 1  // otherwise a wrong schema ends the process
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>

namespace colossal::text {
namespace {

using nlohmann::json;

constexpr char kJsonSchema[] = "json schema";
constexpr int kMaxSchemaDepth = 100;

// Keywords whose schemas apply to the same value as the schema around them, to a part of it, or to nothing by
// themselves.
const std::set<std::string> kAboutTheSame = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependencies"};
const std::set<std::string> kAboutParts = {
    "items",       "additionalItems", "contains",     "properties", "patternProperties", "additionalProperties",
    "definitions", "$defs",           "propertyNames"};
const std::set<std::string> kNamesOfSchemas = {"dependencies", "properties", "patternProperties", "definitions",
                                               "$defs"};
// Keywords of other drafts that change which values are valid. valijson would ignore them.
const std::set<std::string> kOfOtherDrafts = {
    "prefixItems", "unevaluatedItems", "unevaluatedProperties", "dependentRequired", "dependentSchemas", "minContains",
    "maxContains", "$dynamicRef",      "$recursiveRef",         "disallow",          "extends",          "divisibleBy"};

/// A walk through the schemas of a schema. It refuses what valijson would not survive or would ignore, and removes
/// `format`, which valijson would read from values of any type.
class SchemaWalk {
 public:
  explicit SchemaWalk(json& root) : root_(root) {
    visit(root, "#", 0);
    for (size_t i = 0; i < parts_.size(); ++i) visit(*parts_[i].first, parts_[i].second, 0);
  }

 private:
  static constexpr int kIsOpen = 1, kIsDone = 2;

  template <class... Parts>
  static void check(bool is_right, const std::string& path, const Parts&... parts) {
    require(is_right, kJsonSchema, printable(path), ": ", parts...);
  }

  void visit(json& schema, const std::string& path, int depth) {
    if (!schema.is_object()) return;
    int& state = states_[&schema];
    check(state != kIsOpen, path, "schemas must not refer to one another without end; remove a $ref");
    if (state == kIsDone) return;
    check(depth <= kMaxSchemaDepth, path, "nested too deeply, more than ", kMaxSchemaDepth, " levels");
    state = kIsOpen;
    for (const std::string& keyword : kOfOtherDrafts)
      check(!schema.contains(keyword), path, keyword, " is not a keyword of draft 7; write the schema without it");
    if (const auto divisor = schema.find("multipleOf"); divisor != schema.end())  // valijson would divide by 0
      check(divisor->is_number() && *divisor > 0, path, "multipleOf must be a number greater than 0: got ",
            printable(divisor->dump()));
    schema.erase("format");
    if (const auto reference = schema.find("$ref"); reference != schema.end())
      visit(target_of(*reference, path), path + "/$ref", depth + 1);
    for (auto& [keyword, value] : schema.items()) {
      const bool is_about_the_same = kAboutTheSame.contains(keyword);
      if (!is_about_the_same && !kAboutParts.contains(keyword)) continue;
      const bool is_many = value.is_array() || kNamesOfSchemas.contains(keyword);
      for (auto& [name, one] : is_many ? value.items() : schema.items()) {
        if (!is_many && name != keyword) continue;
        const std::string below = concat(path, "/", keyword, is_many ? "/" + name : "");
        if (is_about_the_same)
          visit(one, below, depth + 1);
        else
          parts_.emplace_back(&one, below);
      }
    }
    states_[&schema] = kIsDone;
  }

  json& target_of(const json& reference, const std::string& path) {
    const std::string pointer = reference.is_string() ? reference.get<std::string>() : "";
    const bool is_local = pointer == "#" || pointer.starts_with("#/");
    try {
      if (is_local && pointer.size() == 1) return root_;
      if (is_local) return root_.at(json::json_pointer(pointer.substr(1)));
    } catch (const json::exception&) {  // a pointer to nothing
    }
    throw Error(kJsonSchema,
                concat(printable(path), ": $ref must point to a schema of this schema, as \"#/$defs/name\"",
                       " does: got ", printable(reference.dump())));
  }

  json& root_;
  std::unordered_map<const json*, int> states_;
  std::vector<std::pair<json*, std::string>> parts_;  // schemas of parts of values, with their paths
};

/// Makes integers of numbers like 1.0, which the standard regards as integers, and leaves to doubles what valijson
/// could not take for integers: it has 64 bits with a sign.
void normalize_numbers(json& value) {
  constexpr double kMaxExact = 9007199254740992;  // 2^53
  constexpr uint64_t kMaxInteger = std::numeric_limits<int64_t>::max();
  if (value.is_structured())
    for (json& part : value) normalize_numbers(part);
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMaxInteger) value = value.get<double>();
  if (!value.is_number_float()) return;
  const double number = value.get<double>();
  if (std::trunc(number) == number && std::abs(number) <= kMaxExact) value = static_cast<int64_t>(number);
}

}  // namespace

struct JsonSchemaCheck::Compiled {
  json source{};  // the schema reads from it
  valijson::Schema schema{};
  valijson::Validator validator{};  // keeps compiled patterns
};

JsonSchemaCheck::JsonSchemaCheck(json schema) : compiled_(std::make_unique<Compiled>()) {
  compiled_->source = std::move(schema);
  require(compiled_->source.is_object() || compiled_->source.is_boolean(), kJsonSchema,
          "a schema must be a JSON object, true or false: got ", printable(compiled_->source.dump()));
  normalize_numbers(compiled_->source);
  SchemaWalk walk(compiled_->source);
  try {
    valijson::SchemaParser(valijson::SchemaParser::kDraft7)
        .populateSchema(valijson::adapters::NlohmannJsonAdapter(compiled_->source), compiled_->schema);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(kJsonSchema, printable(error.what()));
  }
}

JsonSchemaCheck::JsonSchemaCheck(JsonSchemaCheck&&) noexcept = default;
JsonSchemaCheck::~JsonSchemaCheck() = default;

std::string JsonSchemaCheck::fault_of(json value) const {
  normalize_numbers(value);
  try {
    valijson::ValidationResults results;
    const valijson::adapters::NlohmannJsonAdapter target(value);
    if (compiled_->validator.validate(compiled_->schema, target, nullptr)) return {};
    compiled_->validator.validate(compiled_->schema, target, &results);  // again, for the reason
    valijson::ValidationResults::Error reason;
    if (!results.popError(reason)) return "not valid";
    std::string path;
    for (const std::string& part : reason.context) path += part;
    return printable(concat(path, ": ", reason.description));
  } catch (const std::exception& error) {
    return printable(plain_message(error));
  }
}

}  // namespace colossal::text
