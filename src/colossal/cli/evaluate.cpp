#include <CLI/CLI.hpp>
#include <cstdio>

#include "colossal/base/json.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/infer/perplexity.h"

namespace colossal::cli {
namespace {

struct EvaluateRequest {
  ModelOptions model;
  std::string file;
  infer::LikelihoodOptions windows;
  bool as_json = false;
};

void print_likelihood(const infer::Likelihood& of, int64_t bytes, bool as_json) {
  if (as_json) {
    const nlohmann::ordered_json line{{"perplexity", of.perplexity()},
                                      {"nll", of.mean()},
                                      {"bits_per_byte", of.bits_per_byte(bytes)},
                                      {"tokens", of.tokens},
                                      {"bytes", bytes}};
    std::puts(line.dump().c_str());
    return;
  }
  std::printf("perplexity %.6g, nll %.6g per token, %.6g bits per byte, %lld tokens, %lld bytes\n", of.perplexity(),
              of.mean(), of.bits_per_byte(bytes), static_cast<long long>(of.tokens), static_cast<long long>(bytes));
}

int print_evaluation(const EvaluateRequest& request, const LoadedModel& loaded) {
  const EncodedTexts texts = read_texts(request.file, *loaded.saved.tokenizer, "evaluate");
  const infer::Likelihood found = infer::likelihood(*loaded.saved.model, texts.ids, request.windows);
  if (loaded.speaks()) print_likelihood(found, texts.bytes, request.as_json);
  return 0;
}

}  // namespace

int evaluate(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Measures how well a model predicts the tokens of a text.", "colossal evaluate");
  EvaluateRequest r;
  app.add_option("--perplexity", r.file,
                 "file with one text, or .jsonl with a \"text\" per line, each evaluated separately")
      ->required();
  add_model_options(app, r.model);
  app.add_option("--window", r.windows.window, "tokens per window; default: the model's positions")
      ->check(CLI::PositiveNumber);
  app.add_option("--stride", r.windows.stride,
                 "tokens between the starts of windows; tokens predicted by an earlier window are not counted again; "
                 "default: --window")
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", r.as_json, "print a JSON object");
  parse(app, arguments);
  check_text_model_options(app, r.model, "evaluate");
  if (r.model.layout.ranks() > 1) require_regular_file(r.file, "evaluate", "several ranks read it");
  return with_model(r.model, "evaluate", arguments, program,
                    [&](const LoadedModel& loaded) { return print_evaluation(r, loaded); });
}

}  // namespace colossal::cli
