#include "colossal/cli/generate_prompts.h"

#include <chrono>
#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/infer/prompts/answers.h"

namespace colossal::cli {
namespace {

void print_speed(size_t prompts, int64_t tokens, const infer::Engine& engine, double seconds) {
  const infer::Scheduler::Counts& counts = engine.counts();
  std::fprintf(
      stderr,
      "%zu prompts, %lld tokens in %.2f s: %.1f tokens/s; %lld prompt tokens, %lld of them cached; %lld preemptions\n",
      prompts, static_cast<long long>(tokens), seconds, static_cast<double>(tokens) / seconds,
      static_cast<long long>(counts.prompt_tokens), static_cast<long long>(counts.found_tokens),
      static_cast<long long>(counts.preempted));
  const infer::Engine::DraftCounts& draft_counts = engine.draft_counts();
  if (draft_counts.proposed > 0)
    std::fprintf(stderr, "%lld draft tokens, %lld of them accepted\n", static_cast<long long>(draft_counts.proposed),
                 static_cast<long long>(draft_counts.accepted));
}

}  // namespace

void generate_prompts(const run::SavedModel& saved, const std::vector<infer::PromptLine>& prompts,
                      const infer::EngineOptions& options, bool prints) {
  infer::Engine engine(*saved.model, options);
  infer::PromptAnswers answers(engine, *saved.tokenizer, saved.end_ids, prompts);
  const auto start = std::chrono::steady_clock::now();
  answers.run([&](const std::string& line) {
    if (!prints) return;
    std::puts(line.c_str());
    std::fflush(stdout);
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (prints) print_speed(prompts.size(), answers.tokens(), engine, seconds);
  require(answers.failed() == 0, "generate", answers.failed(), " of ", prompts.size(),
          " prompts failed: see \"error\" in their lines");
}

}  // namespace colossal::cli
