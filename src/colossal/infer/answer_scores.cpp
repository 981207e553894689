#include "colossal/infer/answer_scores.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/sent_requests.h"
#include "colossal/text/unicode.h"

namespace colossal::infer {
namespace {

bool begins_with(const std::vector<int64_t>& ids, const std::vector<int64_t>& first) {
  return ids.size() >= first.size() && std::equal(first.begin(), first.end(), ids.begin());
}

/// Returns true if the text itself writes the begin token, so that the tokenizer must not add one.
bool has_begin_token(const text::Tokenizer& tokenizer, std::string_view text) {
  const int64_t begin = tokenizer.begin_id();
  if (begin < 0 || !text.starts_with(tokenizer.spelling(begin))) return false;
  return begins_with(tokenizer.encode(text), {begin});
}

void check_answer(const Engine& engine, const GivenAnswer& given, size_t index) {
  try {
    engine.check(scoring_request(given));
  } catch (const Error& error) {
    throw Error(error.component(), concat("answer ", index, ": ", error.message()));
  }
}

/// A request of answer_scores(): it scores an answer, and others of one token to the same prompt.
struct SharedReading {
  size_t index;                      // of the answer
  std::vector<size_t> alternatives;  // indices of the others
};

/// Returns the fewest requests that score all answers, in their order. Prompts are shared by consecutive answers.
std::vector<SharedReading> readings_of(const std::vector<GivenAnswer>& given) {
  std::vector<SharedReading> readings;
  size_t first = 0;  // reading of the prompt's first answer
  for (size_t i = 0; i < given.size(); ++i) {
    const bool is_next = i > 0 && given[i].prompt == given[i - 1].prompt;
    if (is_next && given[i].answer.size() == 1) {
      readings[first].alternatives.push_back(i);
      continue;
    }
    if (!is_next) first = readings.size();
    readings.push_back({i, {}});
  }
  return readings;
}

/// Returns the score of an answer of one token that was an alternative.
AnswerScore alternative_score(const Event& event, size_t place, int64_t token) {
  const LogProbabilities& at_token = event.prompt_log_probabilities.at(0);
  return {{at_token.alternatives.at(place)}, at_token.best.at(0).first == token};
}

// More requests than run at a time add nothing to a step.
bool takes_more(const Engine& engine) {
  const EngineOptions& options = engine.options();
  const int64_t most =
      options.max_waiting > 0 ? std::min(options.max_waiting, options.max_running) : options.max_running;
  return engine.load().waiting < most;
}

}  // namespace

double AnswerScore::sum() const { return std::accumulate(log_probabilities.begin(), log_probabilities.end(), 0.0); }

EncodedAnswer encode_answer(const text::Tokenizer& tokenizer, std::string_view prompt, std::string_view answer) {
  const size_t size = text::size_without_space(prompt);
  const std::string moved = std::string(prompt.substr(size)).append(answer);
  prompt = prompt.substr(0, size);
  const bool has_begin = has_begin_token(tokenizer, prompt);
  const auto encoded = [&](std::string_view text) {
    return has_begin ? tokenizer.encode(text) : tokenizer.encode_prompt(text);
  };
  EncodedAnswer result{{.prompt = encoded(prompt), .answer = {}}};
  const std::vector<int64_t> all = encoded(std::string(prompt).append(moved));
  result.is_apart = !begins_with(all, result.ids.prompt);
  result.ids.answer = result.is_apart ? tokenizer.encode(moved)
                                      : std::vector<int64_t>(all.begin() + std::ssize(result.ids.prompt), all.end());
  if (result.ids.prompt.empty()) {
    const int64_t first = tokenizer.begin_id() >= 0 ? tokenizer.begin_id() : tokenizer.end_id();
    require(first >= 0, "engine",
            "an empty prompt needs a tokenizer with a begin or end token: got none; pass a prompt");
    result.ids.prompt = {first};
  }
  require(!result.ids.answer.empty(), "engine", "an answer must have at least one token: got \"", answer, "\"");
  return result;
}

Request scoring_request(const GivenAnswer& given) {
  require(!given.prompt.empty() && !given.answer.empty(), "engine",
          "a prompt and its answer must have at least one token each: got ", given.prompt.size(), " and ",
          given.answer.size());
  Request request{.prompt = given.prompt,
                  .options = {.max_tokens = 0, .prompt_logprobs = 1},  // is_greedy needs the most probable token
                  .scored_from = std::ssize(given.prompt)};
  request.prompt.insert(request.prompt.end(), given.answer.begin(), given.answer.end());
  return request;
}

AnswerScore score_of(const Event& event, const GivenAnswer& given) {
  require(event.finish_reason == FinishReason::AtLength, "engine",
          "an answer was not scored: ", event.error.empty() ? "its request was cancelled" : event.error);
  AnswerScore score;
  for (size_t i = 0; i < given.answer.size(); ++i) {
    const LogProbabilities& at_token = event.prompt_log_probabilities.at(i);
    score.log_probabilities.push_back(at_token.own);
    score.is_greedy = score.is_greedy && at_token.best.at(0).first == given.answer[i];
  }
  return score;
}

std::vector<ScoringTurn> scoring_turns(const std::vector<GivenAnswer>& given, int64_t step_tokens) {
  struct Rest {  // the answers [first, end) to a prompt that was sent
    size_t first, end;
    int64_t turn;    // turn of the answer that reads the prompt
    int64_t tokens;  // number of tokens that are sent before these answers
  };
  std::vector<ScoringTurn> turns;
  std::deque<Rest> rests;
  int64_t sent = 0;  // number of tokens
  const auto send_rest = [&] {
    const Rest rest = rests.front();
    rests.pop_front();
    for (size_t i = rest.first; i < rest.end; ++i) {
      turns.push_back({i, rest.turn});
      sent += std::ssize(given[i].answer);
    }
  };
  for (size_t first = 0, end = 0; first < given.size(); first = end) {
    for (end = first + 1; end < given.size() && given[end].prompt == given[first].prompt;) ++end;
    while (!rests.empty() && sent >= rests.front().tokens) send_rest();
    turns.push_back({first});
    sent += std::ssize(given[first].prompt) + std::ssize(given[first].answer);
    if (end > first + 1) rests.push_back({first + 1, end, std::ssize(turns) - 1, sent + step_tokens});
  }
  while (!rests.empty()) send_rest();
  return turns;
}

std::vector<AnswerScore> answer_scores(Engine& engine, const std::vector<GivenAnswer>& given) {
  for (size_t i = 0; i < given.size(); ++i) check_answer(engine, given[i], i);
  const std::vector<SharedReading> readings = readings_of(given);
  std::vector<GivenAnswer> read;
  for (const SharedReading& reading : readings) read.push_back(given[reading.index]);
  const std::vector<ScoringTurn> turns = scoring_turns(read, engine.options().step_tokens);
  std::vector<AnswerScore> scores(given.size());
  size_t ended = 0;
  SentRequests sent(engine);
  while (ended < turns.size()) {
    while (sent.count() < turns.size() && takes_more(engine)) {
      const ScoringTurn& turn = turns[sent.count()];
      const SharedReading& reading = readings[turn.index];
      Request request = scoring_request(read[turn.index]);
      for (const size_t i : reading.alternatives) request.alternatives.push_back(given[i].answer.front());
      sent.send(std::move(request), turn.after, [&](const Event& event) {
        scores[reading.index] = score_of(event, given[reading.index]);
        for (size_t place = 0; place < reading.alternatives.size(); ++place) {
          const size_t i = reading.alternatives[place];
          scores[i] = alternative_score(event, place, given[i].answer.front());
        }
        ++ended;
      });
    }
    engine.step();
  }
  return scores;
}

}  // namespace colossal::infer
