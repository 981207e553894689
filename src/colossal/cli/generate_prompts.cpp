#include "colossal/cli/generate_prompts.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "colossal/base/error.h"
#include "colossal/infer/answer_stream.h"
#include "colossal/infer/grammar_constraint.h"

namespace colossal::cli {
namespace {

using nlohmann::ordered_json;

const char* name_of(infer::Ended ended) {
  switch (ended) {
    case infer::Ended::AtEnd:
      return "end";
    case infer::Ended::AtPositions:
      return "positions";
    case infer::Ended::AtStop:
      return "stop";
    case infer::Ended::Failed:
      return "error";
    default:
      return "length";
  }
}

struct Answer {
  infer::AnswerStream stream;
  std::vector<int64_t> prompt;
  std::string text{};
  size_t tokens = 0;
  ordered_json log_probabilities = ordered_json::array();
  ordered_json prompt_log_probabilities = ordered_json::array();  ///< the first token's from the start
  infer::Ended ended = infer::Ended::No;
  std::string error{};
};

/// Empty for ids that only the model has: its vocabulary may be larger than the tokenizer's.
std::string piece_of(const text::Tokenizer& tokenizer, int64_t id) {
  return id < tokenizer.vocabulary_size() ? text::valid_utf8(tokenizer.piece(id)) : "";
}

ordered_json json_of(const infer::LogProbabilities& told, int64_t token, const text::Tokenizer& tokenizer) {
  ordered_json best = ordered_json::array();
  for (const auto& [id, logarithm] : told.best)
    best.push_back({{"id", id}, {"piece", piece_of(tokenizer, id)}, {"logprob", logarithm}});
  return {{"id", token}, {"piece", piece_of(tokenizer, token)}, {"logprob", told.own}, {"best", std::move(best)}};
}

/// Whether the answer has come to its end by this.
bool take(const infer::Engine::Event& event, const text::Tokenizer& tokenizer, Answer& answer) {
  if (answer.ended != infer::Ended::No) return false;  // it was stopped, and the engine says so
  if (event.token >= 0) {
    ++answer.tokens;
    answer.text += answer.stream.push(event.token);
  }
  if (event.log_probabilities)
    answer.log_probabilities.push_back(json_of(*event.log_probabilities, event.token, tokenizer));
  for (const infer::LogProbabilities& told : event.prompt_log_probabilities) {
    const size_t next = answer.prompt_log_probabilities.size();
    answer.prompt_log_probabilities.push_back(json_of(told, answer.prompt[next], tokenizer));
  }
  answer.ended = event.ended;
  answer.error = event.error;
  if (answer.ended != infer::Ended::No) answer.text += answer.stream.finish();
  if (answer.stream.is_stopped()) answer.ended = infer::Ended::AtStop;
  return answer.ended != infer::Ended::No;
}

/// Prints the answers that are done and were not printed, as far as none before them is under way.
void print_done(const std::vector<infer::PromptLine>& prompts, const std::vector<Answer>& answers, size_t& printed) {
  for (; printed < answers.size() && answers[printed].ended != infer::Ended::No; ++printed) {
    const Answer& answer = answers[printed];
    const infer::PromptLine& asked = prompts[printed];
    ordered_json line;
    if (!asked.id.is_null()) line["id"] = asked.id;
    line["prompt"] = asked.prompt, line["text"] = answer.text;
    line["ended"] = name_of(answer.ended), line["tokens"] = answer.tokens;
    if (answer.ended == infer::Ended::Failed) line["error"] = answer.error;
    if (asked.log_probabilities >= 0) line["logprobs"] = answer.log_probabilities;
    if (asked.prompt_log_probabilities >= 0) line["prompt_logprobs"] = answer.prompt_log_probabilities;
    std::puts(line.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }
}

void print_speed(const std::vector<Answer>& answers, const infer::Engine& engine, double seconds) {
  const infer::Scheduler::Counts& counts = engine.counts();
  size_t tokens = 0;
  for (const Answer& answer : answers) tokens += answer.tokens;
  std::fprintf(
      stderr,
      "%zu prompts, %zu tokens in %.2f s: %.1f tokens/s; %lld prompt tokens, %lld of them cached; %lld preemptions\n",
      answers.size(), tokens, seconds, static_cast<double>(tokens) / seconds,
      static_cast<long long>(counts.prompt_tokens), static_cast<long long>(counts.found_tokens),
      static_cast<long long>(counts.preempted));
  const infer::Engine::Guesses& guesses = engine.guesses();
  if (guesses.proposed > 0)
    std::fprintf(stderr, "%lld draft tokens, %lld of them accepted\n", static_cast<long long>(guesses.proposed),
                 static_cast<long long>(guesses.accepted));
}

}  // namespace

void generate_prompts(const run::SavedModel& saved, const std::vector<infer::PromptLine>& prompts,
                      const infer::EngineOptions& options, bool prints) {
  infer::Engine engine(*saved.model, options);
  std::vector<Answer> answers;
  std::map<std::string, std::function<std::shared_ptr<infer::TokenConstraint>()>> constraints;  // by schemas
  for (size_t i = 0; i < prompts.size(); ++i) {
    const infer::PromptLine& line = prompts[i];
    auto& constraint = constraints[line.json_schema];
    if (!constraint)
      constraint = infer::json_constraints(line.json_schema, "the schema", *saved.tokenizer, saved.end_ids);
    infer::Request request{.prompt = saved.tokenizer->encode_prompt(line.prompt), .max_tokens = line.max_tokens};
    request.end_ids = saved.end_ids;
    request.sampling = line.sampling;
    request.log_probabilities = line.log_probabilities;
    request.prompt_log_probabilities = line.prompt_log_probabilities;
    request.sinks = line.sinks;
    request.constraint = constraint();
    try {
      engine.add(request);
      answers.push_back({.stream = {*saved.tokenizer, line.stops}, .prompt = request.prompt});
      const int64_t first = request.prompt.front();
      answers.back().prompt_log_probabilities.push_back({{"id", first},
                                                         {"piece", piece_of(*saved.tokenizer, first)},
                                                         {"logprob", nullptr},
                                                         {"best", ordered_json::array()}});
    } catch (const Error& error) {
      throw Error(error.component(), concat("prompt ", i + 1, ": ", error.message()));
    }
  }
  size_t printed = 0;
  const auto start = std::chrono::steady_clock::now();
  while (engine.has_work()) {
    std::set<int64_t> stopped;  // of which the engine does not say in the same step that they ended
    for (const infer::Engine::Event& event : engine.step()) {
      const bool is_done = take(event, *saved.tokenizer, answers[static_cast<size_t>(event.id)]);
      if (is_done) stopped.insert(event.id);
      if (event.ended != infer::Ended::No) stopped.erase(event.id);
    }
    for (const int64_t id : stopped) engine.cancel(id);
    if (prints) print_done(prompts, answers, printed);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (prints) print_speed(answers, engine, seconds);
  const auto has_failed = [](const Answer& answer) { return answer.ended == infer::Ended::Failed; };
  const auto failed = std::count_if(answers.begin(), answers.end(), has_failed);
  require(failed == 0, "generate", failed, " of ", answers.size(), " prompts failed: see \"error\" in their lines");
}

}  // namespace colossal::cli
