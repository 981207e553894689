#include "colossal/cli/generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/cli/generate_prompts.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/sampling_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/infer/answer_stream.h"
#include "colossal/infer/engine.h"
#include "colossal/infer/generate.h"
#include "colossal/infer/grammar_constraint.h"
#include "colossal/text/utf8.h"

namespace colossal::cli {
namespace {

struct Request {
  ModelOptions model;
  std::string prompts;
  infer::EngineOptions engine;
  std::vector<std::string> engine_options;    ///< options of the engine that were given
  std::vector<std::string> ignored_defaults;  ///< keys of generation_config.json that are not applied
  bool ids = false;
  infer::PromptLine line;                ///< the prompt, and what all prompts of a file have in common
  std::vector<infer::PromptLine> lines;  ///< the file of prompts, which is read once because it may be a pipe

  /// Whether one prompt needs the engine: for draft tokens, a cache of 8 bits or a text without an end.
  bool asks_for_engine() const {
    return engine.guesses > 0 || !model.draft.empty() || engine.cache_dtype || line.sinks >= 0;
  }
};

/// Continues one text whose request asks for the engine.
void generate_by_engine(const Request& request, const LoadedModel& loaded, const std::vector<int64_t>& prompt,
                        std::shared_ptr<infer::TokenConstraint> constraint, const std::function<bool(int64_t)>& emit) {
  const run::SavedModel& saved = loaded.saved;
  infer::Engine engine(*saved.model, loaded.engine(request.engine));
  engine.add({.prompt = prompt,
              .max_tokens = request.line.max_tokens,
              .end_ids = saved.end_ids,
              .sampling = request.line.sampling,
              .sinks = request.line.sinks,
              .constraint = std::move(constraint)});
  while (engine.has_work())
    for (const infer::Engine::Event& event : engine.step()) {
      require(event.ended != infer::Ended::Failed, "generate", event.error);
      if (event.token >= 0 && !emit(event.token)) return;
    }
}

int generate_as_rank(const Request& request, const LoadedModel& loaded) {
  const run::SavedModel& saved = loaded.saved;
  const bool prints = loaded.speaks();
  const bool answers = saved.model->decoding_model().shape.task().objective == models::Objective::Target;
  require(!answers || request.engine_options.empty(), "generate", subject_of(request.engine_options),
          " no effect on a ", saved.model->decoding_model().shape.architecture->name,
          ", which generates without the batching engine; leave the option out");
  if (prints) say_sampling(request.line.sampling, request.ignored_defaults);
  if (!request.prompts.empty()) {
    generate_prompts(saved, request.lines, loaded.engine(request.engine), prints);
    return 0;
  }
  const infer::PromptLine& line = request.line;
  const std::vector<int64_t> prompt = saved.tokenizer->encode_prompt(line.prompt);
  infer::AnswerStream stream(*saved.tokenizer, line.stops);
  auto show = [&](const std::string& text) {
    if (!prints) return;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  if (!request.ids && !answers) show(line.prompt);
  const auto emit = [&](int64_t id) {
    if (std::find(saved.end_ids.begin(), saved.end_ids.end(), id) != saved.end_ids.end()) return false;
    // ids may be beyond what the tokenizer has text for
    const std::string text = request.ids && line.stops.empty() ? "" : stream.push(id);
    show(request.ids ? std::to_string(id) + "\n" : text);
    return !stream.is_stopped();
  };
  const std::shared_ptr<infer::TokenConstraint> constraint =
      infer::json_constraints(line.json_schema, "the schema", *saved.tokenizer, saved.end_ids)();
  if (request.asks_for_engine())
    generate_by_engine(request, loaded, prompt, constraint, emit);
  else
    infer::generate(*saved.model, prompt,
                    {.max_tokens = line.max_tokens,
                     .end_id = saved.tokenizer->end_id(),
                     .sampling = line.sampling,
                     .constraint = constraint.get(),
                     .weights = saved.weights.get()},
                    emit);
  if (!request.ids) show(stream.finish() + "\n");
  return 0;
}

/// Reads the file of prompts, and refuses options without effect, before any rank starts.
void check_generate_options(const CLI::App& app, Request& r) {
  std::vector<std::string> names = engine_option_names();
  names.emplace_back("--sinks");
  r.engine_options = given_options(app, names);
  if (r.prompts.empty()) {
    if (!r.asks_for_engine())
      refuse_options(app, {"--cache", "--step-tokens"},
                     "on a single --prompt without --guess, --draft, --cache-type or --sinks, which runs in one pass "
                     "with a cache of the needed size; use --prompts");
    refuse_unused_sampling(app, r.line.sampling);
    return;
  }
  if (r.model.layout.ranks() > 1) require_regular_file(r.prompts, "generate", "several ranks read it");
  r.lines = infer::read_prompts(r.prompts, r.line);
  const bool draws = std::any_of(r.lines.begin(), r.lines.end(),
                                 [](const infer::PromptLine& line) { return line.sampling.temperature > 0; });
  if (!draws) refuse_unused_sampling(app, r.line.sampling);
}

}  // namespace

int generate(const Arguments& arguments, const models::Registry* models) {
  CLI::App app("Generates text with the model of a run folder, a Hugging Face folder or a GGUF file.",
               "colossal generate");
  Request r;
  add_model_options(app, r.model);
  add_engine_options(app, r.model, r.engine);
  app.add_option("--prompt", r.line.prompt, "prompt to continue; the source text of an encoder-decoder model");
  app.add_option("--prompts", r.prompts,
                 "file of prompts, one per line, or .jsonl with \"prompt\" and options per line; they run as one "
                 "batch, and a JSON object is printed for each, in order");
  add_sinks(app, r.line.sinks);
  app.add_option("--max-tokens", r.line.max_tokens, "maximum number of new tokens")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  add_sampling_options(app, r.line.sampling, r.line.stops);
  add_json_schema(app, r.line.json_schema);
  app.add_option("--logprobs", r.line.log_probabilities,
                 "number of most probable tokens to print with each new token's log-probability; needs --prompts")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--prompt-logprobs", r.line.prompt_log_probabilities,
                 "number of most probable tokens to print with each prompt token's log-probability; needs --prompts")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--ids", r.ids, "print token ids, one per line, instead of text");
  parse(app, arguments);
  r.ignored_defaults = use_folder_defaults(app, r.model.from, r.line.sampling);
  check_sampling_options(r.line.sampling, r.line.stops);
  check_text_model_options(app, r.model, "generate");
  require((app.count("--prompt") > 0) != !r.prompts.empty(), "generate",
          "exactly one of --prompt and --prompts must be given");
  require(text::is_utf8(r.line.prompt), "generate", "--prompt must be UTF-8: got other bytes");
  require(r.prompts.empty() || !r.ids, "generate", "--ids needs --prompt: got --prompts; leave out --ids");
  require(!r.prompts.empty() || (r.line.log_probabilities < 0 && r.line.prompt_log_probabilities < 0), "generate",
          "--logprobs and --prompt-logprobs need --prompts: got --prompt");
  check_generate_options(app, r);
  return with_model(r.model, "generate", arguments, models,
                    [&](const LoadedModel& loaded) { return generate_as_rank(r, loaded); });
}

}  // namespace colossal::cli
