#include "colossal/cli/model_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/model_path.h"
#include "colossal/base/run_folder.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/device.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/memory/tiers/eviction_policy.h"
#include "colossal/parallel/expert/config.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/text/tokenizer.h"

namespace colossal::cli {

void add_expert_options(CLI::App& app, distributed::ParallelConfig& layout) {
  app.add_option("--parallel.expert,--parallel.expert.size", layout.expert.size,
                 "number of ranks that divide the experts of each layer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.expert.tensor", layout.expert.tensor,
                 "what the ranks of a tensor group hold: whole experts (deal), or parts of each (split)")
      ->capture_default_str()
      ->check(CLI::IsMember({"deal", "split"}));
  app.add_option("--parallel.expert.compress", layout.expert.compress,
                 "format of hidden states on their way to experts of other ranks; none = uncompressed")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "fp8"}));
  app.add_option("--parallel.expert.node", layout.expert.node,
                 "number of ranks of a node, to which a token is sent once; 0 = straight to each rank")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
}

namespace {

void add_layout(CLI::App& app, distributed::ParallelConfig& layout) {
  app.add_option("--parallel.tensor,--parallel.tensor.size", layout.tensor.size,
                 "number of ranks that share each matrix")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.tensor.mode", layout.tensor.mode, "partition of matrices")
      ->capture_default_str()
      ->check(CLI::IsMember(parallel::mode_names()));
  app.add_option("--parallel.tensor.depth", layout.tensor.depth, "number of copies of the weights (2.5d)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_expert_options(app, layout);
  app.add_option("--parallel.sequence,--parallel.sequence.size", layout.sequence.size,
                 "number of ranks that split the prompt's tokens and the KV cache")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.sequence.mode", layout.sequence.mode, "exchange of keys and queries between ranks")
      ->capture_default_str()
      ->check(CLI::IsMember(parallel::sequence_mode_names()));
  app.add_option("--parallel.sequence.ulysses", layout.sequence.ulysses,
                 "number of neighbouring ranks that exchange heads (usp)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.sequence.node", layout.sequence.node,
                 "number of sequence ranks per node (ring, usp); 0 = one ring over all ranks")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--parallel.pipeline,--parallel.pipeline.size", layout.pipeline.size,
                 "number of ranks that split the model's blocks")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

void add_precision(CLI::App& app, ModelOptions& options) {
  app.add_option("--precision,--precision.mode", options.precision.mode,
                 "dtype of weights and activations; default: that of the run's master weights, or fp32")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  app.add_option("--quantize", options.quantize,
                 "weight format, quantized while loading: int8 or int4 with a scale per group of inputs, fp8 (e4m3) "
                 "with a scale per output; default: not quantized")
      ->check(CLI::IsMember({"int8", "int4", "fp8"}));
  app.add_option("--group-size", options.group_size,
                 "number of inputs that share a scale of int8 or int4, a multiple of 8")
      ->capture_default_str();
}

void add_memory(CLI::App& app, run::MemoryConfig& memory) {
  add_size(app, "--memory.device", memory.device,
           "GPU memory per rank for weights; the other weights are in host memory and copied for every token; default: "
           "all weights, or with memory.host or memory.disk what is read at a time");
  add_size(app, "--memory.host", memory.host,
           "host memory of this machine, over all ranks, for weights outside memory.device; weights that do not fit "
           "are read from memory.disk for every token; default: all weights");
  app.add_option("--memory.disk", memory.disk,
                 "folder for weights that do not fit, emptied at the end; without memory.host it holds as many weights "
                 "as possible");
  app.add_option("--memory.placement", memory.placement, "eviction policy: which weights are not in memory.host")
      ->capture_default_str()
      ->check(CLI::IsMember(memory::eviction_policy_names()));
}

constexpr int64_t kDraftTokens = 4;  // each draft token costs a pass, and later ones are accepted less often

/// Checks that tokens of both models have the same text. Errors ("draft"): tokens that differ.
void check_draft(const text::Tokenizer& own, const text::Tokenizer& draft) {
  const int64_t common = std::min(own.vocabulary_size(), draft.vocabulary_size());
  for (int64_t id = 0; id < common; ++id)
    require(own.piece(id) == draft.piece(id), "draft", "a draft model must have the model's tokens: token ", id,
            " is '", text::valid_utf8(own.piece(id)), "', in the draft '", text::valid_utf8(draft.piece(id)), "'");
}

/// Checks the folder of the draft model. Errors ("draft"): no tokenizer can be read from it, and no other is named.
void check_draft_folder(const ModelOptions& options) {
  const std::string& folder = options.draft;
  std::error_code ignored;
  const bool is_run = std::filesystem::exists(RunFolder(folder).config(), ignored);
  const bool is_model = formats::is_gguf(folder) || std::filesystem::exists(folder + "/config.json", ignored);
  require(is_run || !is_model || text::has_tokenizer(folder), "draft",
          "the draft model must come with a tokenizer, because its tokens must be those of the model: got none in ",
          folder, "; copy the model's tokenizer files there, or name one for both models with --tokenizer");
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

void add_model_name(CLI::App& app, std::string& model) {
  app.add_option("--model", model,
                 "of a run of several models: the name of another trained one; default: the main model");
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--from", options.from, "run folder, Hugging Face folder (config.json and safetensors) or GGUF file")
      ->required();
  add_model_name(app, options.model);
  app.add_option("--tokenizer", options.tokenizer,
                 "`bytes`, or a tokenizer folder or file; default: the model's tokenizer");
  add_layout(app, options.layout);
  app.add_option("--run.device", options.device, "device: auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  add_precision(app, options);
  add_memory(app, options.memory);
  add_timeout(app, options.timeout);
}

void add_engine_options(CLI::App& app, ModelOptions& model, infer::EngineOptions& options) {
  add_size(app, "--kv-cache", options.cache_bytes, "size of the KV cache per rank; default: 1GiB");
  const auto read_type = [&options](const std::string& type) {
    if (type != "model") options.cache_dtype = type == "int8" ? at::kChar : at::kFloat8_e4m3fn;
  };
  app.add_option_function<std::string>("--kv-cache-dtype", read_type,
                                       "element type of the KV cache: model = the activations' dtype; int8 or fp8 = "
                                       "quantized, with a scale per token and head; default: model")
      ->check(CLI::IsMember({"model", "int8", "fp8"}));
  app.add_option("--step-tokens", options.step_tokens, "maximum number of tokens per step, over all sequences")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--draft-tokens", options.draft_tokens,
                 "maximum number of draft tokens per step, from --draft, from the multi-token layers of the model or, "
                 "without them, from earlier text (prompt lookup); 0 = off; with --draft the default is 4")
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
  app.add_option("--draft", model.draft,
                 "draft model: a smaller model with the same tokenizer, given as for --from; its layout, precision and "
                 "--quantize are those of the model");
}

void check_model_options(const CLI::App& app, const ModelOptions& options) {
  options.layout.axes();
  parallel::check_expert_tensor(options.layout.expert, options.layout.tensor);
  parallel::check_expert_node(options.layout.expert, options.layout.tensor);
  require(options.quantize.empty() || !options.memory.has_tiers(), "quantize",
          "--quantize keeps all weights in memory: got keys of memory too; leave out either");
  const distributed::ParallelConfig& layout = options.layout;
  const distributed::ParallelConfig default_layout;
  if (layout.tensor.size == 1 && layout.tensor.mode != default_layout.tensor.mode)
    refuse_options(app, {"--parallel.tensor.mode"}, "with --parallel.tensor=1, where each rank has whole matrices");
  if (layout.tensor.size == 1 && layout.expert.tensor != default_layout.expert.tensor)
    refuse_options(app, {"--parallel.expert.tensor"}, "with --parallel.tensor=1, where each rank has whole experts");
  if (layout.tensor.size == 1 && layout.expert.size == 1 && layout.expert.compress != default_layout.expert.compress)
    refuse_options(app, {"--parallel.expert.compress"}, "on one rank, which has all experts");
  if (layout.sequence.size == 1 && layout.sequence.mode != default_layout.sequence.mode)
    refuse_options(app, {"--parallel.sequence.mode"}, "with --parallel.sequence=1, where each rank has all tokens");
  if (options.quantize != "int8" && options.quantize != "int4")
    refuse_options(app, {"--group-size"}, "without --quantize int8 or int4, whose groups share a scale");
  if (options.memory.disk.empty())
    refuse_options(app, {"--memory.placement"}, "without --memory.disk, because all weights stay in host memory");
  require_model_path(options.from, "run");
  if (options.draft.empty()) return;
  require_model_path(options.draft, "draft");
  if (options.tokenizer.empty()) check_draft_folder(options);
  if (app.count("--draft-tokens") > 0 && app.get_option("--draft-tokens")->as<int64_t>() == 0)
    refuse_options(app, {"--draft"},
                   "with --draft-tokens 0; leave out --draft-tokens, or set the number of draft tokens per step");
}

void check_text_model_options(const CLI::App& app, const ModelOptions& options, const char* command) {
  require(options.tokenizer != "none", command, "--tokenizer must be bytes, or a tokenizer's folder or file: got none");
  check_model_options(app, options);
}

void require_another_path(const char* command, const std::string& from, const std::string& to) {
  std::error_code ignored;
  require(!std::filesystem::equivalent(from, to, ignored), command,
          "--to must not be --from, which would be overwritten: got ", to, "; name another folder");
}

infer::EngineOptions LoadedModel::engine(infer::EngineOptions options) const {
  if (!draft) return options;
  options.draft = draft->model.get();
  if (options.draft_tokens == 0) options.draft_tokens = kDraftTokens;
  return options;
}

void print_notices(const run::SavedModel& saved) {
  for (const std::string& notice : saved.notices) std::fprintf(stderr, "colossal: %s\n", notice.c_str());
}

run::Loading loading_of(const ModelOptions& options) {
  run::Loading loading{.model = options.model, .tokenizer = options.tokenizer, .memory = options.memory};
  if (!options.precision.mode.empty()) loading.dtype = options.precision.dtype();
  const int64_t bits = options.quantize.empty() ? 0 : options.quantize == "int4" ? 4 : 8;
  loading.packing = {.bits = bits, .group = options.group_size, .floating = options.quantize == "fp8"};
  return loading;
}

std::unique_ptr<comm::World> join_layout(const ModelOptions& options, int64_t replicas) {
  const distributed::ParallelConfig& layout = options.layout;
  const at::Device device = comm::choose_device(options.device, 0);
  auto world = join_ranks(options.timeout, device.is_cuda() ? "cuda" : "cpu");
  require(world->size() == replicas * layout.ranks(), "parallel", "the number of ranks must match the layout: got ",
          world->size(), " ranks, ", replicas > 1 ? concat("replicas ", replicas, " * ") : "", "pipeline ",
          layout.pipeline.size, layout.expert.size > 1 ? concat(" * expert ", layout.expert.size) : "", " * sequence ",
          layout.sequence.size, " * tensor ", layout.tensor.size);
  if (world->rank() == 0) warn_of_unused_gpus(options.device);
  return world;
}

ModelAndDraft load_with_draft(const ModelOptions& options, const run::Loading& loading, comm::Mesh& mesh,
                              const run::Program* program) {
  const at::Device device = comm::choose_device(options.device, mesh.world().local_rank());
  const run::Program& known = program ? *program : run::built_in();
  ModelAndDraft loaded{run::load_model(options.from, mesh, options.layout, device, loading, known)};
  if (options.draft.empty()) return loaded;
  run::Loading of_draft = loading;
  of_draft.memory = {};
  of_draft.model.clear();
  loaded.draft = run::load_model(options.draft, mesh, options.layout, device, of_draft, known);
  const models::ModelShape& shape = loaded.draft->model->decoding_model().shape;
  require(shape.task().continues(), "draft", "a draft model must continue text: got a ", shape.architecture->name,
          ", which ", shape.task().purpose());
  if (loaded.model.tokenizer) check_draft(*loaded.model.tokenizer, *loaded.draft->tokenizer);
  return loaded;
}

int with_model(const ModelOptions& options, const std::string& command, const Arguments& arguments,
               const run::Program* program, const std::function<int(const LoadedModel&)>& work) {
  return with_ranks(options.layout.ranks(), command, arguments, [&] {
    const auto world = join_layout(options);
    comm::Mesh mesh(*world, options.layout.axes());
    const ModelAndDraft loaded = load_with_draft(options, loading_of(options), mesh, program);
    if (world->rank() == 0) print_notices(loaded.model);
    return work({*world, mesh, loaded.model, loaded.draft ? &*loaded.draft : nullptr});
  });
}

}  // namespace colossal::cli
