#include "colossal/cli/generate.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/cli/generate_prompts.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/device.h"
#include "colossal/infer/generate.h"
#include "colossal/memory/tiers/eviction.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {
namespace {

struct Request {
  std::string from, prompt, prompts, tokenizer, device = "auto";
  int64_t max_tokens = 100, timeout = 300;
  infer::EngineOptions engine;
  distributed::ParallelConfig layout;
  bool ids = false;
  infer::SamplingOptions sampling;
  run::PrecisionConfig precision{.mode = ""};
  std::string quantize;
  int64_t group = 128;
  run::MemoryConfig memory;
};

int generate_as_rank(const Request& request, const models::Registry& registry) {
  const at::Device device = comm::choose_device(request.device, 0);
  const auto world = join_ranks(request.timeout, device.is_cuda() ? "cuda" : "cpu");
  const distributed::ParallelConfig& layout = request.layout;
  require(world->size() == layout.ranks(), "parallel", "the ranks must be those of the layout: got ", world->size(),
          " ranks, pipeline ", layout.pipeline.size, " * sequence ", layout.sequence.size, " * tensor ",
          layout.tensor.size);
  comm::Mesh mesh(*world, layout.axes());
  run::Loading loading{.tokenizer = request.tokenizer, .memory = request.memory};
  if (!request.precision.mode.empty()) loading.dtype = request.precision.dtype();
  loading.packing = {.bits = request.quantize == "int8"   ? 8
                             : request.quantize == "int4" ? 4
                                                          : 0,
                     .group = request.group};
  const run::SavedModel saved = run::load_model(
      request.from, mesh, layout, comm::choose_device(request.device, world->local_rank()), loading, registry);
  const bool prints = world->rank() == 0;
  if (!request.prompts.empty()) {
    generate_prompts(saved, read_prompts(request.prompts),
                     {request.engine, request.max_tokens, request.sampling, prints});
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
  infer::generate(*saved.model, prompt,
                  {.max_tokens = request.max_tokens,
                   .end_id = saved.tokenizer->end_id(),
                   .sampling = request.sampling,
                   .weights = saved.weights.get()},
                  [&](int64_t id) {
                    show(request.ids ? std::to_string(id) + "\n" : stream.push(id));
                    return true;
                  });
  if (!request.ids) show(stream.finish() + "\n");
  return 0;
}

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

void add_precision_and_memory(CLI::App& app, Request& r) {
  app.add_option("--precision,--precision.mode", r.precision.mode,
                 "of weights and activations; default: that of the run's masters, or fp32")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  app.add_option("--quantize", r.quantize,
                 "codes of weights, each group of inputs rounded by itself while they are loaded; default: none")
      ->check(CLI::IsMember({"int8", "int4"}));
  app.add_option("--group", r.group, "quantize: inputs that share a scale, a multiple of 8")->capture_default_str();
  app.add_option("--step-tokens", r.engine.step_tokens,
                 "prompts: tokens of all texts that are computed at once, at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  const auto add_size = [&app](const std::string& key, int64_t& bytes, const std::string& help) {
    const auto read = [key, &bytes](const std::string& text) {
      const std::optional<int64_t> size = parse_bytes(text);
      if (!size) throw CLI::ValidationError(key, "must be a size, as 2GiB: got " + text);
      bytes = *size;
    };
    app.add_option_function<std::string>(key, read, help);
  };
  add_size("--memory.device", r.memory.device,
           "of each rank's GPU for weights; the others are in host memory, and copied for every token; default: all "
           "weights, or with memory.host or memory.disk what is read at a time");
  add_size("--memory.host", r.memory.host,
           "of this machine for weights that memory.device has not, its ranks together; what does not fit is read from "
           "memory.disk for every token; default: all of them");
  add_size("--cache", r.engine.cache_bytes, "prompts: of keys and values on a rank; default: 1GiB");
  app.add_option("--memory.disk", r.memory.disk,
                 "folder for what does not fit, until the end; without memory.host: for as much as possible");
  app.add_option("--memory.placement", r.memory.placement, "which weights are not in memory.host")
      ->capture_default_str()
      ->check(CLI::IsMember(memory::eviction_names()));
}

}  // namespace

int generate(const Arguments& arguments, const models::Registry* models) {
  CLI::App app("Continues a text with the model of a run folder, a Hugging Face folder or a GGUF file, or answers it.",
               "colossal generate");
  Request r;
  app.add_option("--from", r.from, "run folder, Hugging Face folder (config.json and safetensors) or GGUF file")
      ->required();
  app.add_option("--prompt", r.prompt, "text to continue, or that a model with an encoder is to answer");
  app.add_option("--prompts", r.prompts,
                 "file of texts to continue, one a line, or .jsonl with \"prompt\"; they run together, and an object "
                 "of JSON is printed for each, in their order");
  app.add_option("--tokenizer", r.tokenizer,
                 "bytes, or a tokenizer's folder or file; instead of the one that comes with the model");
  app.add_option("--max-tokens", r.max_tokens, "new tokens at most")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", r.sampling.temperature, "0: always the most probable token")->capture_default_str();
  app.add_option("--top-k", r.sampling.top_k, "draw from the k most probable; 0: all")->capture_default_str();
  app.add_option("--top-p", r.sampling.top_p, "draw from the most probable that together reach it")
      ->capture_default_str();
  app.add_option("--seed", r.sampling.seed, "of the draws")->capture_default_str();
  add_layout(app, r.layout);
  app.add_option("--run.device", r.device, "auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  add_precision_and_memory(app, r);
  add_timeout(app, r.timeout);
  app.add_flag("--ids", r.ids, "print token ids, one a line, instead of text");
  parse(app, arguments);
  const infer::Sampler check(r.sampling);  // refuses bad options before any rank starts
  r.layout.axes();
  require(r.prompt.empty() != r.prompts.empty(), "generate", "give one of --prompt and --prompts");
  require(r.prompts.empty() || (!r.ids && !r.memory.has_tiers()), "generate",
          "with --prompts weights lie in memory and texts are printed: leave out --ids and the keys of memory");
  if (!r.prompts.empty()) read_prompts(r.prompts);  // refuses a bad file before any rank starts
  require(r.quantize.empty() || !r.memory.has_tiers(), "generate",
          "quantized weights lie in memory: leave out the keys of memory, or --quantize");
  return with_ranks(r.layout.ranks(), "generate", arguments,
                    [&] { return generate_as_rank(r, models ? *models : models::built_in()); });
}

}  // namespace colossal::cli
