#include "colossal/text/tokenizers/gguf_words.h"

#include <cstring>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/word_scanner.h"

namespace colossal::text {
namespace {

using nlohmann::json;

constexpr char kThreeDigits[] = R"([0-9][0-9][0-9])", kNumberPattern[] = R"(\p{N})";
constexpr char kSentences[] = " ?[^(\\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+";
constexpr char kTekkenWords[] = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The patterns by the names that llama.cpp has for them. If llama.cpp approximates the pattern of a tokenizer.json,
/// the table has the original pattern. See: src/llama-vocab.cpp of https://github.com/ggml-org/llama.cpp.
const std::vector<GgufWords>& table() {
  static const std::vector<GgufWords> rows{
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
        "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"},
       {kGpt2Words}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"},
       {kLlama3Words},
       true,
       true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {kLlama3Words}},
      {{"glm4", "glm5"}, {kLlama3Words}, true},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"},
       {kQwen2Words}},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {kNumberPattern, kGpt2Words}},
      {{"gpt-4o", "llama4", "kanana2", "talkie"}, {kO200kWords}},
      {{"tekken"}, {kTekkenWords}, true, true},
      {{"falcon"}, {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Words, kThreeDigits}},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {kSentences}},
      {{"viking"}, {kSentences, kNumberPattern}},
      {{"default"}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Words, R"(\p{N}+)", kThreeDigits}}};
  return rows;
}

/// Returns the pattern of a step that is a Split by a regular expression that keeps all text; no value for other steps.
std::optional<std::string> pattern_of_step(const json& step) {
  if (type_of(step) != "Split" || value_or(step, "invert", false)) return std::nullopt;
  if (value_or<std::string>(step, "behavior", "") != "Isolated") return std::nullopt;
  return pattern_text(step, "Regex");
}

/// Returns the patterns by which a pre_tokenizer splits; GPT-2's own if a ByteLevel uses it. Empty if it has another
/// step.
std::vector<std::string> patterns_of(const json& section) {
  std::vector<std::string> patterns;
  const json steps = type_of(section) == "Sequence" ? section.at("pretokenizers") : json::array({section});
  for (size_t i = 0; i < steps.size(); ++i) {
    const json& step = steps[i];
    if (const auto pattern = pattern_of_step(step)) {
      patterns.push_back(*pattern);
    } else if (type_of(step) == "ByteLevel" && i + 1 == steps.size() && !adds_prefix_space(step)) {
      if (value_or(step, "use_regex", true)) patterns.emplace_back(kGpt2Words);
    } else if (type_of(step) == "Digits" && value_or(step, "individual_digits", false)) {
      patterns.emplace_back(kNumberPattern);
    } else {
      return {};
    }
  }
  return patterns;
}

}  // namespace

const GgufWords& gguf_words(const std::string& name, const std::string& path) {
  for (const GgufWords& row : table())
    for (const char* its : row.names)
      if (name == its) return row;
  throw Error("gguf", concat(path, ": tokenizer.ggml.pre names ", printable(name),
                             ", a pre-tokenizer that is not supported; name a tokenizer with --tokenizer"));
}

const GgufWords* gguf_words_of(const json& pre_tokenizer, bool ignores_merges) {
  if (pre_tokenizer.is_null()) return nullptr;
  const std::vector<std::string> wanted = patterns_of(pre_tokenizer);
  if (wanted.empty()) return nullptr;
  for (const GgufWords& row : table()) {
    bool fits = row.ignores_merges == ignores_merges && row.patterns.size() == wanted.size();
    for (size_t i = 0; fits && i < wanted.size(); ++i) fits = wanted[i] == row.patterns[i];
    if (fits) return &row;
  }
  return nullptr;
}

json pre_tokenizer_of(const GgufWords& words) {
  json steps = json::array();
  for (const char* pattern : words.patterns)
    steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

}  // namespace colossal::text
