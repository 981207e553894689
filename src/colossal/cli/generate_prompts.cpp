#include "colossal/cli/generate_prompts.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/text/utf8.h"

namespace colossal::cli {
namespace {

std::string prompt_of(const std::string& line, bool is_json) {
  if (!is_json) return line;
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  require(object.is_object() && object.contains("prompt") && object["prompt"].is_string(), "generate",
          "a line must be an object with a string \"prompt\": got ", line.substr(0, 80));
  return object["prompt"];
}

const char* name_of(infer::Ended ended) {
  switch (ended) {
    case infer::Ended::AtEnd:
      return "end";
    case infer::Ended::AtPositions:
      return "positions";
    default:
      return "length";
  }
}

struct Answer {
  std::vector<int64_t> tokens{};
  infer::Ended ended = infer::Ended::No;
};

/// Prints the answers that are done and were not printed, as far as none before them is under way.
void print_done(const std::vector<std::string>& prompts, const std::vector<Answer>& answers,
                const text::Tokenizer& tokenizer, size_t& printed) {
  for (; printed < answers.size() && answers[printed].ended != infer::Ended::No; ++printed) {
    const Answer& answer = answers[printed];
    text::TextStream stream(tokenizer);
    std::string text;
    for (const int64_t token : answer.tokens) text += stream.push(token);
    text += stream.finish();
    const nlohmann::ordered_json line{{"prompt", prompts[printed]},
                                      {"text", text},
                                      {"ended", name_of(answer.ended)},
                                      {"tokens", answer.tokens.size()}};
    std::puts(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }
}

void print_speed(const std::vector<Answer>& answers, const infer::Scheduler::Counts& counts, double seconds) {
  size_t tokens = 0;
  for (const Answer& answer : answers) tokens += answer.tokens.size();
  std::fprintf(stderr,
               "%zu prompts, %zu tokens in %.2f s: %.1f tokens/s; of %lld prompt tokens %lld were there, %lld times a "
               "text gave up its blocks\n",
               answers.size(), tokens, seconds, static_cast<double>(tokens) / seconds,
               static_cast<long long>(counts.prompt_tokens), static_cast<long long>(counts.found_tokens),
               static_cast<long long>(counts.preempted));
}

}  // namespace

std::vector<std::string> read_prompts(const std::string& path) {
  std::ifstream file(path);
  require(file.good(), "generate", "the file of prompts cannot be read: ", path);
  const bool is_json = path.size() >= 6 && path.compare(path.size() - 6, 6, ".jsonl") == 0;
  std::vector<std::string> prompts;
  int64_t number = 1;
  for (std::string line; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      require(text::is_utf8(line), "generate", "a prompt must be UTF-8");
      prompts.push_back(prompt_of(line, is_json));
    } catch (const Error& error) {
      throw Error("generate", concat(path, " line ", number, ": ", error.message()));
    }
  }
  require(!prompts.empty(), "generate", "the file of prompts holds none: ", path);
  return prompts;
}

void generate_prompts(const run::SavedModel& saved, const std::vector<std::string>& prompts,
                      const PromptsOptions& options) {
  infer::Engine engine(*saved.model, options.engine);
  for (size_t i = 0; i < prompts.size(); ++i) {
    infer::Request request{.prompt = saved.tokenizer->encode_prompt(prompts[i]), .max_tokens = options.max_tokens};
    request.end_ids = saved.end_ids;
    request.sampling = options.sampling;
    request.sampling.seed += static_cast<int64_t>(i);
    if (options.constraint) request.constraint = options.constraint();
    try {
      engine.add(request);
    } catch (const Error& error) {
      throw Error(error.component(), concat("prompt ", i + 1, ": ", error.message()));
    }
  }
  std::vector<Answer> answers(prompts.size());
  size_t printed = 0;
  const auto start = std::chrono::steady_clock::now();
  while (engine.has_work()) {
    for (const infer::Engine::Event& event : engine.step()) {
      Answer& answer = answers[static_cast<size_t>(event.id)];
      if (event.token >= 0) answer.tokens.push_back(event.token);
      answer.ended = event.ended;
    }
    if (options.prints) print_done(prompts, answers, *saved.tokenizer, printed);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.prints) print_speed(answers, engine.counts(), seconds);
}

}  // namespace colossal::cli
