#include "colossal/evaluate/evaluate.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/cli/bench/table.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/picture_evaluation.h"
#include "colossal/cli/reconstruction_evaluation.h"
#include "colossal/cli/structure_evaluation.h"
#include "colossal/cli/text_lines.h"
#include "colossal/comm/agreement.h"
#include "colossal/evaluate/engine_scorer.h"
#include "colossal/infer/perplexity.h"
#include "colossal/nn/parameter.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/text/chat_template.h"

namespace colossal::cli {
namespace {

/// The options of --tasks, which the other kinds of evaluations do not use.
const std::vector<std::string> kTaskOptions{"--data",          "--shots",        "--limit",    "--chat-template",
                                            "--add-bos-token", "--samples",      "--kv-cache", "--kv-cache-dtype",
                                            "--step-tokens",   "--draft-tokens", "--draft"};

struct EvaluateRequest {
  ModelOptions model;
  std::string file;         ///< text of --perplexity; "" = another kind of evaluation
  std::string pictures;     ///< folder of --pictures; "" = another kind
  std::string reconstruct;  ///< folder of --reconstruct; "" = another kind
  std::string structures;   ///< folder of --structures; "" = another kind
  infer::LikelihoodOptions windows;
  bool as_json = false;
  std::vector<std::string> tasks;
  evaluate::DataOptions data;
  std::optional<bool> adds_begin;
  std::string samples;  ///< file of samples; "" = none
  infer::EngineOptions engine;
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

const char* dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "fp64";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "fp16";
    default:
      return "fp32";
  }
}

void print_results(const std::vector<evaluate::TaskResult>& results) {
  const BenchTable table({{"task", -32}, {"metric", -15}, {"value", 9}, {"error", 8}, {"items", 7}, {"truncated", 9}});
  const auto print = [&table](const std::string& name, const evaluate::TaskResult& result) {
    for (const evaluate::Measured& measured : result.metrics)
      table.print_row({name, measured.metric, fixed_text(measured.value, 4),
                       std::isnan(measured.error) ? "" : fixed_text(measured.error, 4), result.count,
                       result.truncated});
  };
  table.print_head();
  for (const evaluate::TaskResult& result : results) {
    print(result.name, result);
    for (const evaluate::TaskResult& subject : result.subjects) print("  " + subject.name, subject);
  }
  for (const evaluate::TaskResult& result : results)
    std::printf("%s: shots %lld, chat template %s, %s%s\n", result.name.c_str(), static_cast<long long>(result.shots),
                result.is_chat ? "on" : "off", result.dtype.c_str(),
                result.apart > 0 ? concat(", ", result.apart, " texts encoded in two parts").c_str() : "");
}

int run_tasks(const EvaluateRequest& request, const std::vector<evaluate::PreparedTask>& tasks,
              const LoadedModel& loaded) {
  const run::SavedModel& saved = loaded.saved;
  std::optional<AtomicFile> samples;
  comm::agree(loaded.mesh.all(), at::kCPU, [&] {
    if (!request.samples.empty() && loaded.speaks()) samples.emplace(request.samples);
  });
  evaluate::EngineScorer scorer(*saved.model, loaded.engine(request.engine), *saved.tokenizer, saved.end_ids,
                                dtype_name(saved.model->parameters().options().dtype));
  evaluate::ScoringOptions options{.adds_begin = request.adds_begin};
  if (samples)
    options.on_sample = [&](const nlohmann::ordered_json& sample) { samples->write(json_line(sample) + "\n"); };
  const std::vector<evaluate::TaskResult> results = evaluate::evaluate(scorer, *saved.tokenizer, tasks, options);
  if (samples) samples->commit();
  if (!loaded.speaks()) return 0;
  if (!request.as_json) {
    print_results(results);
    return 0;
  }
  nlohmann::ordered_json by_name = nlohmann::ordered_json::object();
  for (const evaluate::TaskResult& result : results) by_name[result.name] = evaluate::json_of(result);
  std::puts(json_line(by_name).c_str());
  return 0;
}

void add_task_options(CLI::App& app, EvaluateRequest& r, bool& is_chat) {
  app.add_option("--tasks", r.tasks,
                 concat("tasks to run, separated by commas: files that end in .toml, or ",
                        join(evaluate::built_in_tasks()), ", or one subject of a task (mmlu_anatomy)"))
      ->delimiter(',');
  app.add_option("--data", r.data.data, "folder of the files of tasks; default: that of a task's own file");
  app.add_option("--shots", r.data.shots, "solved examples before each prompt; default: those of the task")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}));
  app.add_option("--limit", r.data.limit, "first lines of each file that are used; default: all")
      ->check(CLI::PositiveNumber);
  app.add_flag("--chat-template", is_chat,
               "make each prompt a user message of the model's chat template, and the shots turns before it");
  app.add_option("--add-bos-token", r.adds_begin,
                 "whether texts get the begin token: true or false; default: as the tokenizer does");
  app.add_option("--samples", r.samples, "file for a JSON line per item: prompt, target, metrics, scores or answer");
}

/// Refuses options that have no effect together with the others.
void check_evaluate_options(const CLI::App& app, const EvaluateRequest& r) {
  int kinds = r.tasks.empty() ? 0 : 1;
  for (const std::string* one : {&r.file, &r.pictures, &r.reconstruct, &r.structures}) kinds += one->empty() ? 0 : 1;
  require(kinds == 1, "evaluate",
          "exactly one of --perplexity, --tasks, --pictures, --reconstruct and --structures must be given");
  if (r.tasks.empty()) refuse_options(app, kTaskOptions, "without --tasks");
  if (r.file.empty()) refuse_options(app, {"--window", "--stride"}, "without --perplexity");
}

}  // namespace

int evaluate(const Arguments& arguments, const run::Program* program) {
  CLI::App app(
      "Measures a model: its perplexity of a text, its results in tasks, its accuracy on pictures, how well it "
      "reconstructs them, or how near it folds known structures.",
      "colossal evaluate");
  EvaluateRequest r;
  bool is_chat = false;
  app.add_option("--perplexity", r.file,
                 "file with one text, or .jsonl with a \"text\" per line, each evaluated separately");
  add_task_options(app, r, is_chat);
  app.add_option("--pictures", r.pictures, "folder with a folder of pictures for each class, by its name or number");
  app.add_option("--reconstruct", r.reconstruct,
                 "folder of pictures and videos, also in folders, that an autoencoder encodes and decodes");
  app.add_option("--structures", r.structures,
                 "folder of mmCIF and PDB files, also in folders, whose protein chains a model folds");
  add_model_options(app, r.model, parallel::all_sequence_mode_names());
  add_engine_options(app, r.model, r.engine);
  app.add_option("--window", r.windows.window, "tokens per window; default: the model's positions")
      ->check(CLI::PositiveNumber);
  app.add_option("--stride", r.windows.stride,
                 "tokens between the starts of windows; tokens predicted by an earlier window are not counted again; "
                 "default: --window")
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", r.as_json, "print a JSON object");
  parse(app, arguments);
  check_evaluate_options(app, r);
  if (r.file.empty() && r.tasks.empty()) {
    check_model_options(app, r.model);
    r.model.tokenizer = "none";
    const run::Program known = program ? *program : run::built_in();
    return with_model(r.model, "evaluate", arguments, &known, [&](const LoadedModel& loaded) {
      if (!r.structures.empty()) return evaluate_structures(r.model.from, r.structures, r.as_json, loaded, known);
      if (!r.reconstruct.empty()) return evaluate_reconstruction(r.reconstruct, r.as_json, loaded);
      return evaluate_pictures(r.model.from, r.pictures, r.as_json, loaded, known);
    });
  }
  check_text_model_options(app, r.model, "evaluate");
  if (!r.file.empty()) {
    if (r.model.layout.ranks() > 1) require_regular_file(r.file, "evaluate", "several ranks read it");
    return with_model(r.model, "evaluate", arguments, program,
                      [&](const LoadedModel& loaded) { return print_evaluation(r, loaded); });
  }
  std::optional<text::ChatTemplate> chat_template;
  if (is_chat) chat_template = r.model.chat_template();
  require(chat_template || !is_chat, "evaluate", r.model.from, " has no chat template; leave out --chat-template");
  r.data.chat_template = chat_template ? &*chat_template : nullptr;
  const std::vector<evaluate::PreparedTask> tasks = evaluate::prepare(r.tasks, r.data);
  return with_model(r.model, "evaluate", arguments, program,
                    [&](const LoadedModel& loaded) { return run_tasks(r, tasks, loaded); });
}

}  // namespace colossal::cli
