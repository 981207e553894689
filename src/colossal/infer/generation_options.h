// The options of a generation. Flags, lines of prompts, chats and programs read the same ones.
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
#include "colossal/infer/sampler.h"

namespace colossal::infer {

struct GenerationOptions {
  int64_t max_tokens = 100;    ///< new tokens, at most
  SamplingOptions sampling{};  ///< how tokens are drawn
  /// Texts that end the answer and are left out of it. Callers that have a tokenizer apply them (AnswerStream); the
  /// engine knows tokens only.
  std::vector<std::string> stop{};
  /// Number of most probable tokens that are reported with the log-probability of each new token; -1 = off.
  int64_t logprobs = -1;
  /// As logprobs, for the tokens of the prompt, reported with the first event. Excludes sinks. The prompt is then
  /// computed whole: blocks of earlier requests that begin alike are not reused. -1 = off.
  int64_t prompt_logprobs = -1;
  /// Number of first tokens that stay when the text outgrows the longest that the engine can read (attention sinks).
  /// The text then goes on with them and the newest tokens, about half of the others. -1 = off: the text ends there.
  int64_t sinks = -1;
  /// JSON Schema that the answer must match; "" = any answer. Callers that have a tokenizer make
  /// Request::constraint of it (json_constraints()).
  std::string json_schema{};

  /// One line per option. The name is that in JSON; the flag of `max_tokens` is --max-tokens.
  void fields(Fields& f);
  /// Errors: options that mean nothing ("sampling", "generate"), those of text::json_grammar().
  void check() const;
};

/// Returns the names of the options whose values differ from those of a new GenerationOptions.
std::vector<std::string> changed_options(const GenerationOptions& options);

/// Refuses options that have no effect: "t5 does not use sinks: leave out --sinks". `who` is the runner or caller that
/// states the list `unused`. `asked` are the options that its user gave. Both have names as JSON spells them.
/// Errors (of `component`): a name that is in both.
void refuse_unused(const std::vector<std::string>& asked, const std::vector<std::string>& unused,
                   const std::string& who, const char* component);
/// Returns the flag of an option: "--max-tokens" of "max_tokens".
std::string flag_of(std::string name);

}  // namespace colossal::infer
