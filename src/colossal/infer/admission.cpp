#include "colossal/infer/admission.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"
#include "colossal/infer/engine.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"

namespace colossal::infer {
namespace {

void check_adapter(const std::string& name, const std::vector<std::string>& known, const char* component) {
  if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) return;
  throw Error(component, concat("the adapter of a request must be one that was loaded: got ", printable(name),
                                did_you_mean(name, known), "; ",
                                known.empty() ? "there are none, so leave it out"
                                              : concat("there are ", join(known), ", and the base without a name")));
}

void check_request(const Request& request, const AdmissionLimits& limits) {
  const StepRunner& runner = limits.runner;
  const models::ModelShape& shape = runner.shape();
  const char* component = component_of(limits.options);
  const GenerationOptions& options = request.options;
  require(!request.prompt.empty(), component, "the prompt must have at least one token");
  for (const int64_t id : request.prompt)
    require(id >= 0 && id < shape.vocabulary, component, "prompt ids must lie in the model's vocabulary of ",
            shape.vocabulary, ": got ", id);
  for (const auto& [biased, bias] : options.sampling.logit_bias)
    require(biased < shape.vocabulary, "sampling", "a logit bias must be of a token of the vocabulary of ",
            shape.vocabulary, ": got ", biased);
  require(options.prompt_logprobs < 0 || options.attention_sinks < 0, "engine",
          "log-probabilities of a prompt exclude attention_sinks, which drop prompt tokens: got attention_sinks ",
          options.attention_sinks);
  const int64_t tokens = static_cast<int64_t>(request.prompt.size()), first = request.scored_from;
  require(first == 1 || (first > 1 && first < tokens), component, "scored_from must be 1 to ",
          std::max<int64_t>(1, tokens - 1),
          ", the last token of the prompt, because no token is before the first: got ", first);
  require(first == 1 || options.prompt_logprobs >= 0, component, "scored_from must be 1 without prompt_logprobs: got ",
          first, "; set prompt_logprobs");
  for (const int64_t id : request.alternatives)
    require(id >= 0 && id < shape.vocabulary && options.prompt_logprobs >= 0, component,
            "alternatives must be ids in the model's vocabulary of ", shape.vocabulary,
            ", of a request with prompt_logprobs: got ", id, " with prompt_logprobs ", options.prompt_logprobs);
  require(options.attention_sinks < 0 || !runner.remembers_tokens(), component,
          "attention_sinks drop tokens, which layers that read the tokens before each token do not support: got ",
          options.attention_sinks);
  require(!request.pooling || (runner.has_states() && *request.pooling != Pooling::Pooler), component,
          "a vector of a prompt needs the batching engine, ranks that hold whole hidden states, and the pooling cls, "
          "mean, max or last; use infer::Embedder");
  require(request.pooling || shape.outputs() == 0, component,
          "completions need a model that predicts the next token: got a ", shape.architecture->name, ", which ",
          shape.task().purpose(), "; use infer::TextScorer");
  check_adapter(request.adapter, limits.options.adapters, component);
  refuse_unused(changed_options(options), runner.unused(), runner.name(), component);
}

// The message counts the last new token, which the request asks for and no block stores.
void check_room(int64_t prompt, int64_t new_tokens, int64_t stored, int64_t capacity) {
  if (stored <= capacity) return;
  const bool has_last = new_tokens > 0;
  throw Error("engine",
              concat("prompt + new tokens must fit the KV cache: got ", prompt, " + ", new_tokens, " tokens, capacity ",
                     capacity + (has_last ? 1 : 0), has_last ? " with the last one, which is not stored" : "",
                     "; raise --kv-cache or lower --max-tokens"));
}

void drop_surplus(std::vector<int64_t>& text, int64_t& longest, int64_t attention_sinks,
                  const AdmissionLimits& limits) {
  const BlockPool& pool = limits.scheduler.pool();
  if (limits.runner.shape().part<models::SlidingWindow>().tokens == 0)
    longest = std::min(longest, pool.blocks() * pool.block_tokens());
  require(attention_sinks < longest / 2, "engine", "attention_sinks must be less than half of the maximum length of ",
          longest, " tokens: got ", attention_sinks);
  const auto first = text.begin() + attention_sinks;
  text.erase(first, first + surplus(static_cast<int64_t>(text.size()), longest, attention_sinks));
}

}  // namespace

const char* component_of(const EngineOptions& options) { return options.alone ? "generate" : "engine"; }

int64_t surplus(int64_t length, int64_t longest, int64_t attention_sinks) {
  const int64_t part = (longest - attention_sinks + 1) / 2;
  return length <= longest ? 0 : (length - longest + part - 1) / part * part;
}

Admission admit(const Request& request, const AdmissionLimits& limits) {
  check_request(request, limits);
  const GenerationOptions& options = request.options;
  const bool is_pooled = request.pooling.has_value(), is_scored = options.prompt_logprobs >= 0 && !is_pooled;
  Admission admitted{.text = limits.runner.text_of(request), .longest = limits.runner.longest()};
  int64_t& longest = admitted.longest;
  if (limits.options.max_length > 0) longest = std::min(longest, limits.options.max_length);
  int64_t max_new_tokens = is_pooled ? 0 : std::max<int64_t>(options.max_tokens, 0);
  if (is_scored && max_new_tokens == 0) admitted.text.pop_back();
  if (options.attention_sinks >= 0) drop_surplus(admitted.text, longest, options.attention_sinks, limits);
  const auto length = static_cast<int64_t>(admitted.text.size());
  require(length <= longest, component_of(limits.options), "the prompt must fit the model's positions: got ",
          request.prompt.size(), " tokens, ", longest, " positions");
  // The model never reads the last new token, so that token needs no position.
  admitted.room = std::min(max_new_tokens, longest - length + 1);
  if (options.attention_sinks < 0) max_new_tokens = admitted.room;
  admitted.max_new_tokens = max_new_tokens;
  admitted.read_again = std::min(std::max<int64_t>(max_new_tokens - 1, 0), longest - length);
  admitted.first_scored = is_scored ? request.scored_from - 1 : 0;
  if (is_pooled) admitted.scored = length;
  if (is_scored) admitted.scored = static_cast<int64_t>(request.prompt.size()) - request.scored_from;
  if (admitted.needs_steps())
    check_room(length, max_new_tokens, length + admitted.read_again, limits.scheduler.max_length());
  return admitted;
}

}  // namespace colossal::infer
