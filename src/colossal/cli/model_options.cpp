#include "colossal/cli/model_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/gguf_file.h"
#include "colossal/base/run_folder.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/device.h"
#include "colossal/memory/tiers/eviction.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/text/tokenizer.h"

namespace colossal::cli {
namespace {

void add_layout(CLI::App& app, distributed::ParallelConfig& layout) {
  app.add_option("--parallel.tensor,--parallel.tensor.size", layout.tensor.size, "ranks that share the model")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.tensor.mode", layout.tensor.mode, "how matrices are cut")
      ->capture_default_str()
      ->check(CLI::IsMember(parallel::mode_names()));
  app.add_option("--parallel.tensor.depth", layout.tensor.depth, "2.5d: copies of the weights")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.sequence,--parallel.sequence.size", layout.sequence.size,
                 "ranks that share the tokens of the prompt, and the cache")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.sequence.mode", layout.sequence.mode, "how queries of the prompt meet keys")
      ->capture_default_str()
      ->check(CLI::IsMember(parallel::sequence_mode_names()));
  app.add_option("--parallel.sequence.ulysses", layout.sequence.ulysses, "usp: neighbours that exchange heads")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.sequence.node", layout.sequence.node, "ring, usp: ranks of a node; 0: one ring over all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--parallel.pipeline,--parallel.pipeline.size", layout.pipeline.size, "ranks that share its blocks")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

void add_precision(CLI::App& app, ModelOptions& options) {
  app.add_option("--precision,--precision.mode", options.precision.mode,
                 "of weights and activations; default: that of the run's masters, or fp32")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  app.add_option(
         "--quantize", options.quantize,
         "codes of weights, rounded while they are loaded: int8 and int4 each group of inputs by itself, fp8 (e4m3) "
         "each output; default: none")
      ->check(CLI::IsMember({"int8", "int4", "fp8"}));
  app.add_option("--group", options.group, "quantize: inputs that share a scale of int8 and int4, a multiple of 8")
      ->capture_default_str();
}

void add_memory(CLI::App& app, run::MemoryConfig& memory) {
  add_size(app, "--memory.device", memory.device,
           "of each rank's GPU for weights; the others are in host memory, and copied for every token; default: all "
           "weights, or with memory.host or memory.disk what is read at a time");
  add_size(app, "--memory.host", memory.host,
           "of this machine for weights that memory.device has not, its ranks together; what does not fit is read from "
           "memory.disk for every token; default: all of them");
  app.add_option("--memory.disk", memory.disk,
                 "folder for what does not fit, until the end; without memory.host: for as much as possible");
  app.add_option("--memory.placement", memory.placement, "which weights are not in memory.host")
      ->capture_default_str()
      ->check(CLI::IsMember(memory::eviction_names()));
}

constexpr int64_t kDraftTokens = 4;  // a draft costs a pass for each, and is right ever less often

/// Errors ("draft"): tokens that stand for other text.
void check_draft(const text::Tokenizer& own, const text::Tokenizer& draft) {
  const int64_t common = std::min(own.vocabulary_size(), draft.vocabulary_size());
  for (int64_t id = 0; id < common; ++id)
    require(own.piece(id) == draft.piece(id), "draft", "a draft model must have the tokens of the model: token ", id,
            " is '", text::valid_utf8(own.piece(id)), "', in the draft '", text::valid_utf8(draft.piece(id)), "'");
}

/// Errors ("draft"): a folder of the draft model from which no tokenizer can be read, and none is named.
void check_draft_folder(const ModelOptions& options) {
  const std::string& folder = options.draft;
  std::error_code ignored;
  const bool is_run = std::filesystem::exists(RunFolder(folder).config(), ignored);
  const bool is_model = is_gguf(folder) || std::filesystem::exists(folder + "/config.json", ignored);
  require(is_run || !is_model || text::has_tokenizer(folder), "draft",
          "the draft model must come with a tokenizer, because its tokens must be those of the model: got none in ",
          folder, "; copy the model's tokenizer files there, or name one for both models with --tokenizer");
}

run::Loading loading_of(const ModelOptions& options) {
  run::Loading loading{.tokenizer = options.tokenizer, .memory = options.memory};
  if (!options.precision.mode.empty()) loading.dtype = options.precision.dtype();
  const int64_t bits = options.quantize.empty() ? 0 : options.quantize == "int4" ? 4 : 8;
  loading.packing = {.bits = bits, .group = options.group, .floating = options.quantize == "fp8"};
  return loading;
}

}  // namespace

void add_size(CLI::App& app, const std::string& key, int64_t& bytes, const std::string& help) {
  const auto read = [key, &bytes](const std::string& text) {
    const std::optional<int64_t> size = parse_bytes(text);
    if (!size) throw CLI::ValidationError(key, concat("must be ", kSizeRule, ": got ", text));
    bytes = *size;
  };
  app.add_option_function<std::string>(key, read, help);
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--from", options.from, "run folder, Hugging Face folder (config.json and safetensors) or GGUF file")
      ->required();
  app.add_option("--tokenizer", options.tokenizer,
                 "bytes, or a tokenizer's folder or file; instead of the one that comes with the model");
  add_layout(app, options.layout);
  app.add_option("--run.device", options.device, "auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  add_precision(app, options);
  add_memory(app, options.memory);
  add_timeout(app, options.timeout);
}

void add_engine_options(CLI::App& app, ModelOptions& model, infer::EngineOptions& options) {
  add_size(app, "--cache", options.cache_bytes, "of keys and values on a rank; default: 1GiB");
  const auto read_type = [&options](const std::string& type) {
    if (type != "model") options.cache_dtype = type == "int8" ? at::kChar : at::kFloat8_e4m3fn;
  };
  app.add_option_function<std::string>("--cache-type", read_type,
                                       "of keys and values: model, as activations are; int8 or fp8, codes with a scale "
                                       "a token and head; default: model")
      ->check(CLI::IsMember({"model", "int8", "fp8"}));
  app.add_option("--step-tokens", options.step_tokens, "tokens of all texts that are computed at once, at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--guess", options.guesses,
                 "tokens of an answer that are guessed in a step, at most, from what was said before or by --draft; "
                 "0: none, with --draft 4")
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
  app.add_option("--draft", model.draft,
                 "a smaller model with the same tokens, as --from, that guesses; its layout, precision and --quantize "
                 "are the same");
}

void add_sinks(CLI::App& app, int64_t& sinks) {
  app.add_option("--sinks", sinks,
                 "go on where a text is longer than the model's positions or the cache: its first so many tokens stay "
                 "and the newest ones; default: it ends there")
      ->check(CLI::NonNegativeNumber);
}

std::vector<std::string> engine_option_names() {
  return {"--cache", "--cache-type", "--step-tokens", "--guess", "--draft"};
}

void check_model_options(const CLI::App& app, const ModelOptions& options) {
  options.layout.axes();
  require(options.quantize.empty() || !options.memory.has_tiers(), "quantize",
          "quantized weights lie in memory: leave out the keys of memory, or --quantize");
  const distributed::ParallelConfig& layout = options.layout;
  const distributed::ParallelConfig default_layout;
  if (layout.tensor.size == 1 && layout.tensor.mode != default_layout.tensor.mode)
    refuse_options(app, {"--parallel.tensor.mode"}, "with --parallel.tensor=1: one rank has whole matrices");
  if (layout.sequence.size == 1 && layout.sequence.mode != default_layout.sequence.mode)
    refuse_options(app, {"--parallel.sequence.mode"}, "with --parallel.sequence=1: one rank has all tokens");
  if (options.quantize != "int8" && options.quantize != "int4")
    refuse_options(app, {"--group"}, "without --quantize int8 or int4, whose groups share a scale");
  if (options.memory.disk.empty())
    refuse_options(app, {"--memory.placement"}, "without --memory.disk: no weights leave host memory");
  if (options.draft.empty()) return;
  if (options.tokenizer.empty()) check_draft_folder(options);
  if (app.count("--guess") > 0 && app.get_option("--guess")->as<int64_t>() == 0)
    refuse_options(app, {"--draft"},
                   "with --guess 0: leave out --guess, or give how many tokens the draft model writes");
}

void check_text_model_options(const CLI::App& app, const ModelOptions& options, const char* command) {
  require(options.tokenizer != "none", command,
          "--tokenizer must be bytes, or a tokenizer's folder or file: got none, which reads no text");
  check_model_options(app, options);
}

infer::EngineOptions LoadedModel::engine(infer::EngineOptions options) const {
  options.weights = saved.weights.get();
  if (!draft) return options;
  options.draft = draft->model.get();
  if (options.guesses == 0) options.guesses = kDraftTokens;
  return options;
}

int with_model(const ModelOptions& options, const std::string& command, const Arguments& arguments,
               const models::Registry* models, const std::function<int(const LoadedModel&)>& work) {
  const distributed::ParallelConfig& layout = options.layout;
  return with_ranks(layout.ranks(), command, arguments, [&] {
    const at::Device device = comm::choose_device(options.device, 0);
    const auto world = join_ranks(options.timeout, device.is_cuda() ? "cuda" : "cpu");
    require(world->size() == layout.ranks(), "parallel", "the ranks must be those of the layout: got ", world->size(),
            " ranks, pipeline ", layout.pipeline.size, " * sequence ", layout.sequence.size, " * tensor ",
            layout.tensor.size);
    if (world->rank() == 0) warn_of_unused_gpus(options.device);
    comm::Mesh mesh(*world, layout.axes());
    const run::SavedModel saved =
        run::load_model(options.from, mesh, layout, comm::choose_device(options.device, world->local_rank()),
                        loading_of(options), models ? *models : models::built_in());
    if (options.draft.empty()) return work({*world, mesh, saved});
    run::Loading loading = loading_of(options);
    loading.memory = {};
    const run::SavedModel draft =
        run::load_model(options.draft, mesh, layout, comm::choose_device(options.device, world->local_rank()), loading,
                        models ? *models : models::built_in());
    const models::ModelShape& shape = draft.model->decoding_model().shape;
    require(shape.task().objective == models::Objective::NextToken, "draft", "a draft model must continue text: got a ",
            shape.architecture->name, ", which ", shape.task().purpose());
    if (saved.tokenizer) check_draft(*saved.tokenizer, *draft.tokenizer);
    return work({*world, mesh, saved, &draft});
  });
}

}  // namespace colossal::cli
