#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/generation_flags.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/infer/decoding/lone_runner.h"
#include "colossal/infer/decoding/schema_cache.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/prompts/answer_stream.h"
#include "colossal/infer/prompts/lines.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/unicode.h"

namespace colossal::cli {
namespace {

/// Returns true if the model generates a text from a source prompt, not a continuation of it.
bool is_answer_to_source(const run::SavedModel& saved) { return saved.model->decoding_model().shape.task().answers(); }

struct GenerateRequest {
  ModelOptions model;
  std::string prompt, prompts;
  infer::EngineOptions engine;
  infer::GenerationOptions options;           ///< options of the prompt, and defaults for the lines of a file
  std::vector<std::string> asked;             ///< given options that a request which runs alone does not use
  std::vector<std::string> ignored_defaults;  ///< keys of generation_config.json that are not applied
  bool ids = false;
  std::vector<infer::PromptLine> lines;  ///< lines of the file of prompts, read once because it may be a pipe

  /// Returns true if one prompt needs the batching engine: for draft tokens, an 8-bit cache or attention sinks.
  bool asks_for_batching() const {
    return engine.draft_tokens > 0 || !model.draft.empty() || engine.cache_dtype || options.attention_sinks >= 0;
  }
};

/// Continues one text and prints it piece by piece.
void generate_one(const GenerateRequest& request, const LoadedModel& loaded) {
  const run::SavedModel& saved = loaded.saved;
  const infer::GenerationOptions& options = request.options;
  infer::AnswerStream stream(*saved.tokenizer, options.stop);
  const auto show = [&](const std::string& text) {
    if (!loaded.speaks()) return;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  infer::EngineOptions engine_options = loaded.engine(request.engine);
  engine_options.alone = !request.asks_for_batching();
  infer::Engine engine(*saved.model, engine_options);
  infer::Request asked{.prompt = saved.tokenizer->encode_prompt(request.prompt),
                       .end_ids = saved.end_ids,
                       .options = options,
                       .prompt_end = saved.tokenizer->end_id()};
  asked.constraint = infer::SchemaCache(*saved.tokenizer, saved.end_ids).constraint(options.json_schema);
  // A prompt may be long, so it is shown only after nothing has refused it.
  std::string shown_first = request.ids || is_answer_to_source(saved) ? "" : request.prompt;
  engine.add(std::move(asked), [&](const infer::Event& event) {
    require(event.finish_reason != infer::FinishReason::Failed, "generate", event.error);
    show(std::exchange(shown_first, ""));
    if (!event.is_answer()) return;
    // The model may generate ids for which the tokenizer has no text.
    const std::string text = request.ids && options.stop.empty() ? "" : stream.push(event.token);
    show(request.ids ? std::to_string(event.token) + "\n" : text);
    if (stream.is_stopped()) engine.drop(event.id);
  });
  while (engine.has_work()) engine.step();
  if (!request.ids) show(shown_first + stream.finish() + "\n");
}

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

/// Prints a line of JSON for each prompt to stdout, and the speed to stderr, on the rank that sets `prints`. All ranks
/// of the layout must call. Errors: errors of infer::PromptAnswers; ("generate") prompts that failed, after their lines
/// were printed.
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

int generate_as_rank(const GenerateRequest& request, const LoadedModel& loaded) {
  const run::SavedModel& saved = loaded.saved;
  if (is_answer_to_source(saved))
    infer::refuse_unused(request.asked, infer::LoneRunner::unused_options(),
                         saved.model->decoding_model().shape.architecture->name, "generate");
  if (loaded.speaks()) say_sampling(request.options.sampling, request.ignored_defaults);
  if (request.prompts.empty())
    generate_one(request, loaded);
  else
    generate_prompts(saved, request.lines, loaded.engine(request.engine), loaded.speaks());
  return 0;
}

/// Reads the file of prompts, and refuses options without effect, before any rank starts.
void check_generate_options(const CLI::App& app, GenerateRequest& r) {
  r.asked = given_names(app, infer::LoneRunner::unused_options());
  std::erase_if(r.asked, [&](const std::string& name) {  // options whose values turn them off
    return (name == "draft_tokens" && r.engine.draft_tokens == 0) ||
           (name == "kv_cache_dtype" && !r.engine.cache_dtype);
  });
  if (r.prompts.empty()) {
    std::vector<std::string> flags;
    for (const std::string& name : r.asked) flags.push_back(infer::flag_of(name));
    if (!r.asks_for_batching())
      refuse_options(app, flags,
                     "on a single --prompt without --draft-tokens, --draft, --kv-cache-dtype or --attention-sinks, "
                     "which runs in one pass with a cache of the needed size; use --prompts");
    refuse_unused_sampling(app, r.options.sampling);
    return;
  }
  if (r.model.layout.ranks() > 1) require_regular_file(r.prompts, "generate", "several ranks read it");
  r.lines = infer::read_prompts(r.prompts, r.options);
  const bool draws = std::any_of(r.lines.begin(), r.lines.end(),
                                 [](const infer::PromptLine& line) { return line.options.sampling.temperature > 0; });
  if (!draws) refuse_unused_sampling(app, r.options.sampling);
}

}  // namespace

int generate(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Generates text with the model of a run folder, a Hugging Face folder or a GGUF file.",
               "colossal generate");
  GenerateRequest r;
  add_model_options(app, r.model);
  add_engine_options(app, r.model, r.engine);
  app.add_option("--prompt", r.prompt, "prompt to continue; the source text of an encoder-decoder model");
  app.add_option("--prompts", r.prompts,
                 "file of prompts, one per line, or .jsonl with \"prompt\" and options per line; they run as one "
                 "batch, and a JSON object is printed for each, in order");
  add_generation_flags(app, r.options);
  app.add_flag("--ids", r.ids, "print token ids, one per line, instead of text");
  parse(app, arguments);
  r.ignored_defaults = use_folder_defaults(app, r.model.from, r.options.sampling);
  r.options.check();
  check_text_model_options(app, r.model, "generate");
  require((app.count("--prompt") > 0) != !r.prompts.empty(), "generate",
          "exactly one of --prompt and --prompts must be given");
  require(text::is_utf8(r.prompt), "generate", "--prompt must be UTF-8: got other bytes");
  require(r.prompts.empty() || !r.ids, "generate", "--ids needs --prompt: got --prompts; leave out --ids");
  require(!r.prompts.empty() || (r.options.logprobs < 0 && r.options.prompt_logprobs < 0), "generate",
          "--logprobs and --prompt-logprobs need --prompts: got --prompt");
  check_generate_options(app, r);
  return with_model(r.model, "generate", arguments, program,
                    [&](const LoadedModel& loaded) { return generate_as_rank(r, loaded); });
}

}  // namespace colossal::cli
