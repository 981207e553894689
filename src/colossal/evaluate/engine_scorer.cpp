#include "colossal/evaluate/engine_scorer.h"

#include <deque>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/infer/prompts/answer_stream.h"

namespace colossal::evaluate {
namespace {

/// Added to the logit of the last token of a pair, so that it is drawn. It is larger than any difference of logits, and
/// has room in fp16.
constexpr double kDrawn = 3e4;

void add_token(const infer::LogProbabilities& at, int64_t token, Score& score) {
  score.sum += at.own;
  score.is_greedy = score.is_greedy && at.best.front().first == token;
}

void require_success(const infer::Event& event) {
  require(event.finish_reason != infer::FinishReason::Failed, "evaluate", "a request failed: ", event.error);
}

/// Returns the ranges of indices, in the order of `tokens`, whose sums are at most `room`, or that have one index.
std::vector<std::pair<size_t, size_t>> waves_of(const std::vector<int64_t>& tokens, int64_t room) {
  std::vector<std::pair<size_t, size_t>> waves;
  int64_t sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    sum += tokens[i];
    if (waves.empty() || sum > room) {
      waves.emplace_back(i, i);
      sum = tokens[i];
    }
    waves.back().second = i + 1;
  }
  return waves;
}

}  // namespace

EngineScorer::EngineScorer(distributed::DistributedModel& model, const infer::EngineOptions& options,
                           const text::Tokenizer& tokenizer, std::vector<int64_t> end_ids, std::string dtype)
    : engine_(model, options),
      cache_tokens_(engine_.blocks() * options.block_tokens * model.cache_ranks()),
      tokenizer_(tokenizer),
      end_ids_(std::move(end_ids)),
      dtype_(std::move(dtype)) {}

void EngineScorer::run() {
  while (engine_.has_work()) engine_.step();
}

// The model reads all ids but the last one, which is drawn as the one new token. So a pair may have one id more than
// the model reads, and a continuation of one token finds the cached blocks of its whole context.
void EngineScorer::add(const Pair& pair, Score& score) {
  infer::Request request{.prompt = pair.context};
  request.prompt.insert(request.prompt.end(), pair.continuation.begin(), pair.continuation.end());
  const int64_t last = request.prompt.back();
  request.prompt.pop_back();
  request.options.max_tokens = 1;
  request.options.logprobs = 1;
  request.options.sampling.logit_bias = {{last, kDrawn}};
  if (pair.continuation.size() > 1) request.options.prompt_logprobs = 1;
  score = {0, true};
  engine_.add(std::move(request), [&pair, &score](const infer::Event& event) {
    require_success(event);
    const size_t first = event.prompt_log_probabilities.size() + 1 - pair.continuation.size();
    for (size_t i = 0; i + 1 < pair.continuation.size(); ++i)
      add_token(event.prompt_log_probabilities.at(first + i), pair.continuation[i], score);
    require(event.token == pair.continuation.back(), "evaluate", "the model has no finite logit for token ",
            pair.continuation.back());
    add_token(*event.log_probabilities, event.token, score);
  });
}

std::vector<Score> EngineScorer::score(const std::vector<Pair>& pairs) {
  std::vector<Score> scores(pairs.size());
  const auto repeats_context = [&](size_t i) { return i > 0 && pairs[i].context == pairs[i - 1].context; };
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < pairs.size(); ++i)
    tokens.push_back(static_cast<int64_t>(pairs[i].continuation.size()) +
                     (repeats_context(i) ? 0 : static_cast<int64_t>(pairs[i].context.size())));
  for (const auto& [begin, end] : waves_of(tokens, cache_tokens_ / 2)) {
    for (const bool is_first : {true, false})
      for (size_t i = begin; i < end; ++i)
        if (is_first == (i == begin || !repeats_context(i))) add(pairs[i], scores[i]);
    run();
  }
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
  run();
  return answers;
}

}  // namespace colossal::evaluate
