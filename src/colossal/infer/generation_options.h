// Generation options, shared by flags, lines of prompt files, chats and programs.
//
//   infer::GenerationOptions options = defaults;
//   const auto given = read_json(object, options, "generate");   // {"max_tokens": 20, "stop": ["\n"]}
//   options.check();
//   engine.add({.prompt = ids, .end_ids = end_ids, .options = options}, on_event);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/infer/decoding/sampler.h"

namespace colossal::infer {

struct GenerationOptions {
  int64_t max_tokens = 100;    ///< maximum number of new tokens
  SamplingOptions sampling{};  ///< how tokens are sampled
  /// Stop strings: they end the completion and are not part of it. The engine handles only tokens, so callers that have
  /// a tokenizer apply them (AnswerStream).
  std::vector<std::string> stop{};
  /// Number of most probable tokens to report with the log-probability of each new token; -1 = off.
  int64_t logprobs = -1;
  /// Same as logprobs for the tokens of the prompt from Request::scored_from on, reported with the first event. Cannot
  /// be combined with attention_sinks. The engine reuses cached prefixes only of the tokens before them. With
  /// max_tokens = 0 the request costs no decoding step, and its prompt may have one token more than the model can read.
  /// -1 = off.
  int64_t prompt_logprobs = -1;
  /// Number of first tokens to keep (attention sinks) when a sequence exceeds the maximum length that the engine can
  /// read. Generation continues with them and about half of the other tokens, the newest ones. -1 = off: generation
  /// ends there.
  int64_t attention_sinks = -1;
  /// JSON Schema that the completion must match; "" = any completion. Callers that have a tokenizer set
  /// Request::constraint from it (SchemaCache::constraint()).
  std::string json_schema{};

  /// Visits one field per option, by its name in JSON. The flag of `max_tokens` is --max-tokens.
  void fields(Fields& f);
  /// Errors ("sampling", "generate"): an invalid option. Errors of text::json_grammar().
  void check() const;
};

/// Returns the names of the options whose values differ from those of a new GenerationOptions.
std::vector<std::string> changed_options(const GenerationOptions& options);

/// Refuses options that have no effect: "t5 does not use attention_sinks: leave out --attention-sinks". `asked` are
/// the options that the user set, `unused` those that the runner or caller named `who` ignores. Both hold names as
/// spelled in JSON.
/// Errors (with `component`): a name that is in both lists.
void refuse_unused(const std::vector<std::string>& asked, const std::vector<std::string>& unused,
                   const std::string& who, const char* component);
/// Returns the flag of an option, e.g. "--max-tokens" for "max_tokens".
std::string flag_of(std::string name);

}  // namespace colossal::infer
