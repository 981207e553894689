// Scores given answers: log-probabilities of the tokens of an answer after its prompt.
//
//   infer::Engine engine(*saved.model, {.block_tokens = 16});   // small blocks: more of a shared prompt is reused
//   const std::vector<infer::AnswerScore> scores = infer::answer_scores(engine, {{prompt, yes}, {prompt, no}});
//   const bool prefers_yes = scores[0].sum() > scores[1].sum();
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/infer/request.h"
#include "colossal/text/tokenizer.h"

namespace colossal::infer {

class Engine;

/// Token ids of a prompt and of an answer to it, each at least one. The model reads them as one text.
struct GivenAnswer {
  std::vector<int64_t> prompt, answer;
};

struct AnswerScore {
  std::vector<double> log_probabilities;  ///< natural logarithms, one for each token of the answer
  /// Each token of the answer is the most probable one after those before it; of equal ones the one with the lower id.
  bool is_greedy = true;

  double sum() const;  ///< logarithm of the probability of the whole answer
};

/// Ids of a prompt and an answer that were texts.
struct EncodedAnswer {
  GivenAnswer ids;
  bool is_apart = false;  ///< the texts were encoded apart, because a token crosses the border between them
};

/// Encodes the prompt and the answer as one text, with the tokenizer's special tokens for prompts, and splits the ids
/// after those of the prompt alone. White space that ends the prompt belongs to the answer. If the ids of the prompt
/// do not begin those of the text, because a token crosses the border, both are encoded apart: so the answer is scored
/// whole, and nothing of the prompt is. An empty prompt is the tokenizer's begin token, or else its end token. A prompt
/// that begins with the spelling of the begin token gets no second one. These are the rules of lm-evaluation-harness.
/// Errors ("engine"): an answer without tokens; an empty prompt and a tokenizer without either token.
EncodedAnswer encode_answer(const text::Tokenizer& tokenizer, std::string_view prompt, std::string_view answer);

/// Returns the request that scores an answer: it generates nothing, and scores the tokens from the answer's first on.
/// Errors ("engine"): a prompt or an answer without tokens.
Request scoring_request(const GivenAnswer& given);
/// Returns the score of an answer from the last event of its scoring_request().
/// Errors ("engine"): a request that was cancelled or failed.
AnswerScore score_of(const Event& event, const GivenAnswer& given);

/// One request in the order in which answers are sent to an engine.
struct ScoringTurn {
  size_t index;        ///< index of the answer in the call
  int64_t after = -1;  ///< turn of the answer that reads the same prompt for this one (Request::after); -1 = none
};
/// Returns the order in which an engine with `step_tokens` tokens per step reads the fewest tokens. Of consecutive
/// answers to one prompt the first is sent in its turn. The others follow when a step later that prompt is cached, so
/// that they do not hold up the prompts after theirs.
std::vector<ScoringTurn> scoring_turns(const std::vector<GivenAnswer>& given, int64_t step_tokens);

/// Scores all answers and returns the scores in the same order. Requests of others in the engine advance, too.
///
/// Numerics:      as in Engine: with packed weights and our attention kernel the bits of a score depend neither on
///                other answers nor on cached blocks.
/// Communication: that of the engine's steps. All ranks of a layout must call it with equal answers.
/// Memory:        Event::prompt_log_probabilities of the answers. At most EngineOptions::max_running requests wait.
/// Cost:          the tokens of all texts without those in cached blocks: answers to one prompt, and prompts with the
///                same beginning, read its full blocks once. Further answers of one token to a prompt, such as letters,
///                read nothing. The last token of a text is not read.
/// Errors ("engine"): an answer or prompt without tokens; errors of Engine::add(), before the first step, with the
///                    index of the answer; a full queue. Errors of the steps. Requests that have not ended are dropped.
std::vector<AnswerScore> answer_scores(Engine& engine, const std::vector<GivenAnswer>& given);

}  // namespace colossal::infer
