#include "colossal/evaluate/engine_scorer.h"

#include <deque>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/infer/answer_scores.h"
#include "colossal/infer/prompts/answer_stream.h"

namespace colossal::evaluate {
namespace {

void require_success(const infer::Event& event) {
  require(event.finish_reason != infer::FinishReason::Failed, "evaluate", "a request failed: ", event.error);
}

}  // namespace

EngineScorer::EngineScorer(distributed::DistributedModel& model, const infer::EngineOptions& options,
                           const text::Tokenizer& tokenizer, std::vector<int64_t> end_ids, std::string dtype)
    : engine_(model, options), tokenizer_(tokenizer), end_ids_(std::move(end_ids)), dtype_(std::move(dtype)) {}

std::vector<Score> EngineScorer::score(const std::vector<Pair>& pairs) {
  std::vector<infer::GivenAnswer> given;
  for (const Pair& pair : pairs) given.push_back({pair.context, pair.continuation});
  std::vector<Score> scores;
  for (const infer::AnswerScore& score : infer::answer_scores(engine_, given))
    scores.push_back({score.sum(), score.is_greedy});
  return scores;
}

std::vector<std::string> EngineScorer::generate(const std::vector<Prompt>& prompts) {
  std::vector<std::string> answers(prompts.size());
  std::deque<infer::AnswerStream> streams;
  for (size_t i = 0; i < prompts.size(); ++i) {
    infer::AnswerStream& stream = streams.emplace_back(tokenizer_, prompts[i].until);
    infer::Request request{.prompt = prompts[i].ids, .end_ids = end_ids_};
    request.options.max_tokens = prompts[i].max_tokens;
    engine_.add(std::move(request), [this, &stream, &answer = answers[i]](const infer::Event& event) {
      require_success(event);
      if (event.is_answer()) answer += stream.push(event.token);
      if (stream.is_stopped())
        engine_.drop(event.id);
      else if (event.finish_reason != infer::FinishReason::None)
        answer += stream.finish();
    });
  }
  while (engine_.has_work()) engine_.step();
  return answers;
}

}  // namespace colossal::evaluate
