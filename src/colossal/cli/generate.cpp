#include "colossal/cli/generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/cli/generate_prompts.h"
#include "colossal/cli/model_options.h"
#include "colossal/infer/generate.h"
#include "colossal/infer/grammar_constraint.h"

namespace colossal::cli {
namespace {

struct Request {
  ModelOptions model;
  std::string prompt, prompts, json_schema;
  int64_t max_tokens = 100;
  infer::EngineOptions engine;
  bool ids = false;
  infer::SamplingOptions sampling;
};

int generate_as_rank(const Request& request, const LoadedModel& loaded) {
  const run::SavedModel& saved = loaded.saved;
  const bool prints = loaded.speaks();
  const auto constraints = infer::json_constraints(request.json_schema, *saved.tokenizer, saved.end_ids);
  if (!request.prompts.empty()) {
    infer::EngineOptions engine = request.engine;
    engine.weights = saved.weights.get();
    generate_prompts(saved, read_prompts(request.prompts),
                     {engine, request.max_tokens, request.sampling, prints, constraints});
    return 0;
  }
  const std::vector<int64_t> prompt = saved.tokenizer->encode_prompt(request.prompt);
  text::TextStream stream(*saved.tokenizer);
  auto show = [&](const std::string& text) {
    if (!prints) return;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  const bool answers = saved.model->decoding_model().shape.task().objective == models::Objective::Target;
  if (!request.ids && !answers) show(request.prompt);
  const std::shared_ptr<infer::TokenConstraint> constraint = constraints();
  infer::generate(*saved.model, prompt,
                  {.max_tokens = request.max_tokens,
                   .end_id = saved.tokenizer->end_id(),
                   .sampling = request.sampling,
                   .constraint = constraint.get(),
                   .weights = saved.weights.get()},
                  [&](int64_t id) {
                    if (std::find(saved.end_ids.begin(), saved.end_ids.end(), id) != saved.end_ids.end()) return false;
                    show(request.ids ? std::to_string(id) + "\n" : stream.push(id));
                    return true;
                  });
  if (!request.ids) show(stream.finish() + "\n");
  return 0;
}

}  // namespace

int generate(const Arguments& arguments, const models::Registry* models) {
  CLI::App app("Continues a text with the model of a run folder, a Hugging Face folder or a GGUF file, or answers it.",
               "colossal generate");
  Request r;
  add_model_options(app, r.model);
  add_engine_options(app, r.engine);
  app.add_option("--prompt", r.prompt, "text to continue, or that a model with an encoder is to answer");
  app.add_option("--prompts", r.prompts,
                 "file of texts to continue, one a line, or .jsonl with \"prompt\"; they run together, and an object "
                 "of JSON is printed for each, in their order");
  app.add_option("--max-tokens", r.max_tokens, "new tokens at most")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", r.sampling.temperature, "0: always the most probable token")->capture_default_str();
  app.add_option("--top-k", r.sampling.top_k, "draw from the k most probable; 0: all")->capture_default_str();
  app.add_option("--top-p", r.sampling.top_p, "draw from the most probable that together reach it")
      ->capture_default_str();
  app.add_option("--seed", r.sampling.seed, "of the draws")->capture_default_str();
  app.add_option("--json-schema", r.json_schema, "file of a JSON Schema that each text is to be of");
  app.add_flag("--ids", r.ids, "print token ids, one a line, instead of text");
  parse(app, arguments);
  const infer::Sampler check(r.sampling);  // refuses bad options before any rank starts
  check_model_options(r.model);
  require(r.prompt.empty() != r.prompts.empty(), "generate", "give one of --prompt and --prompts");
  require(r.prompts.empty() || !r.ids, "generate", "with --prompts texts are printed: leave out --ids");
  if (!r.prompts.empty()) read_prompts(r.prompts);  // refuses a bad file before any rank starts
  return with_model(r.model, "generate", arguments, models,
                    [&](const LoadedModel& loaded) { return generate_as_rank(r, loaded); });
}

}  // namespace colossal::cli
