#include "colossal/infer/generation_options.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <variant>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/infer/prompts/answer_stream.h"
#include "colossal/text/grammar/json_schema.h"

namespace colossal::infer {
namespace {

/// Keeps a copy of each value by the name of its field.
class FieldValues : public Fields {
 public:
  using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                             std::vector<std::string>, std::map<int64_t, double>>;
  std::vector<std::pair<std::string, Value>> values;

 private:
  void visit(const Field& field) override {
    values.emplace_back(field.name, std::visit([](const auto* value) -> Value { return *value; }, field.value));
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}
};

FieldValues values_of(GenerationOptions options) {
  FieldValues values;
  options.fields(values);
  return values;
}

}  // namespace

void GenerationOptions::fields(Fields& f) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::min();  // check() checks the range of top_k
  f.previously("sinks").integer_or_off(
      "attention_sinks", attention_sinks, "tokens",
      "number of first tokens to keep when a sequence outgrows the model's positions or the KV cache: "
      "generation continues with them and the newest tokens (attention sinks); default: it ends there");
  f.integer("max_tokens", max_tokens, "tokens", "maximum number of new tokens");
  f.number("temperature", sampling.temperature, "", "sampling temperature; 0 = always the most probable token", 0);
  f.integer("top_k", sampling.top_k, "tokens", "number of most probable tokens to sample from; 0 = all", kAny);
  f.number("top_p", sampling.top_p, "", "total probability of the most probable tokens to sample from; 1 = all", 0, 1);
  f.number("min_p", sampling.min_p, "", "minimum probability of a token, relative to the most probable one; 0 = off", 0,
           1);
  f.number("repetition_penalty", sampling.repetition_penalty, "",
           "divisor of positive logits (factor of negative ones) of tokens in the prompt or completion; 1 = off", 0);
  f.number("presence_penalty", sampling.presence_penalty, "",
           "amount subtracted from the logits of tokens in the completion");
  f.number("frequency_penalty", sampling.frequency_penalty, "",
           "amount subtracted from a token's logit for each of its occurrences in the completion");
  f.numbers_by_id("logit_bias", sampling.logit_bias, "value added to the logit of token ID; repeatable");
  f.texts("stop", stop, "text that ends a completion and is not printed; repeatable");
  f.integer("seed", sampling.seed, "", "random seed of sampling; prompt or answer i uses seed + i", kAny);
  f.json("json_schema", json_schema, "JSON Schema file that every completion will match");
  f.integer_or_off("logprobs", logprobs, "tokens",
                   "number of most probable tokens to print with each new token's log-probability; needs --prompts");
  f.integer_or_off("prompt_logprobs", prompt_logprobs, "tokens",
                   "number of most probable tokens to print with each prompt token's log-probability; needs --prompts");
}

void GenerationOptions::check() const {
  require(max_tokens >= 0 && logprobs >= -1 && prompt_logprobs >= -1 && attention_sinks >= -1, "generate",
          "max_tokens must not be negative, and logprobs, prompt_logprobs and attention_sinks must be at least 0, or "
          "-1 = off: got ",
          max_tokens, ", ", logprobs, ", ", prompt_logprobs, " and ", attention_sinks);
  sampling.check();
  check_stops(stop);
  if (!json_schema.empty()) text::json_grammar(json_schema);
}

std::vector<std::string> changed_options(const GenerationOptions& options) {
  const FieldValues own = values_of(options), initial = values_of({});
  std::vector<std::string> names;
  for (size_t i = 0; i < own.values.size(); ++i)
    if (own.values[i] != initial.values[i]) names.push_back(own.values[i].first);
  return names;
}

void refuse_unused(const std::vector<std::string>& asked, const std::vector<std::string>& unused,
                   const std::string& who, const char* component) {
  std::vector<std::string> names, flags;
  for (const std::string& name : asked)
    if (std::find(unused.begin(), unused.end(), name) != unused.end())
      names.push_back(name), flags.push_back(flag_of(name));
  require(names.empty(), component, who, " does not use ", listed(names), ": leave out ", listed(flags));
}

std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

}  // namespace colossal::infer
