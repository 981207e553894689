#include "colossal/cli/evaluate.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/text_lines.h"
#include "colossal/comm/launch/device.h"
#include "colossal/infer/perplexity.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/utf8.h"

namespace colossal::cli {
namespace {

struct EvaluateRequest {
  std::string from, file, tokenizer, quantize, device = "auto";
  int64_t group = 128, timeout = 300;
  infer::LikelihoodOptions windows;
  distributed::ParallelConfig layout;
  run::PrecisionConfig precision{.mode = ""};
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
  std::printf("perplexity %.6g, nll %.6g a token, %.6g bits a byte, %lld tokens, %lld bytes\n", of.perplexity(),
              of.mean(), of.bits_per_byte(bytes), static_cast<long long>(of.tokens), static_cast<long long>(bytes));
}

int evaluate_as_rank(const EvaluateRequest& request, const models::Registry& registry) {
  const at::Device device = comm::choose_device(request.device, 0);
  const auto world = join_ranks(request.timeout, device.is_cuda() ? "cuda" : "cpu");
  const distributed::ParallelConfig& layout = request.layout;
  require(world->size() == layout.ranks(), "parallel", "the ranks must be those of the layout: got ", world->size(),
          " ranks, pipeline ", layout.pipeline.size, " * tensor ", layout.tensor.size);
  comm::Mesh mesh(*world, layout.axes());
  run::Loading loading{.tokenizer = request.tokenizer};
  if (!request.precision.mode.empty()) loading.dtype = request.precision.dtype();
  if (!request.quantize.empty())
    loading.packing = nn::WeightPacking{.bits = request.quantize == "int8" ? 8 : 4, .group = request.group};
  const run::SavedModel saved = run::load_model(
      request.from, mesh, layout, comm::choose_device(request.device, world->local_rank()), loading, registry);
  const EncodedTexts texts = read_texts(request.file, *saved.tokenizer, "evaluate");
  const infer::Likelihood found = infer::likelihood(*saved.model, texts.ids, request.windows);
  if (world->rank() == 0) print_likelihood(found, texts.bytes, request.as_json);
  return 0;
}

void add_model_options(CLI::App& app, EvaluateRequest& r) {
  app.add_option("--from", r.from, "run folder, Hugging Face folder (config.json and safetensors) or GGUF file")
      ->required();
  app.add_option("--tokenizer", r.tokenizer,
                 "bytes, or a tokenizer's folder or file; instead of the one that comes with the model");
  app.add_option("--precision,--precision.mode", r.precision.mode,
                 "of weights and activations; default: that of the run's masters, or fp32")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  app.add_option("--quantize", r.quantize,
                 "codes of weights, each group of inputs rounded by itself while they are loaded; default: none")
      ->check(CLI::IsMember({"int8", "int4"}));
  app.add_option("--group", r.group, "quantize: inputs that share a scale, a multiple of 8")->capture_default_str();
  app.add_option("--parallel.tensor,--parallel.tensor.size", r.layout.tensor.size, "ranks that share the model")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.tensor.mode", r.layout.tensor.mode, "how matrices are cut")
      ->capture_default_str()
      ->check(CLI::IsMember(parallel::mode_names()));
  app.add_option("--parallel.pipeline,--parallel.pipeline.size", r.layout.pipeline.size, "ranks that share its blocks")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--run.device", r.device, "auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

}  // namespace

EncodedTexts read_texts(const std::string& path, const text::Tokenizer& tokenizer, const char* command) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), command, "the file of texts cannot be read: ", path);
  std::vector<NumberedLine> texts;
  if (path.ends_with(".jsonl")) {
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string::npos)
        texts.push_back({number, text_of({number, line}, command)});
    }
  } else {
    texts.push_back({1, std::string(std::istreambuf_iterator<char>(file), {})});
  }
  require(!file.bad(), command, "the file of texts cannot be read to its end: ", path);
  EncodedTexts encoded;
  for (const NumberedLine& line : texts) {
    require(text::is_utf8(line.text), command, "texts must be UTF-8: got other bytes in ", path);
    if (line.text.empty()) continue;
    encoded.ids.push_back(tokenizer.encode_prompt(line.text));
    const std::vector<int64_t>& ids = encoded.ids.back();
    encoded.bytes += static_cast<int64_t>(line.text.size());
    if (!ids.empty()) encoded.bytes -= static_cast<int64_t>(tokenizer.piece(ids.front()).size());
  }
  require(!encoded.ids.empty(), command, "the file of texts holds none: ", path);
  return encoded;
}

int evaluate(const Arguments& arguments, const models::Registry* models) {
  CLI::App app("How well a model predicts the tokens of a text.", "colossal evaluate");
  EvaluateRequest r;
  app.add_option("--perplexity", r.file, "file: one text, or .jsonl with \"text\" a line, each read by itself")
      ->required();
  add_model_options(app, r);
  app.add_option("--window", r.windows.window, "tokens that are read at once; default: the model's positions")
      ->check(CLI::PositiveNumber);
  app.add_option("--stride", r.windows.stride,
                 "tokens between windows; what an earlier one predicted does not count again; default: a window")
      ->check(CLI::PositiveNumber);
  app.add_flag("--json", r.as_json, "print an object of JSON");
  add_timeout(app, r.timeout);
  parse(app, arguments);
  r.layout.axes();
  return with_ranks(r.layout.ranks(), "evaluate", arguments,
                    [&] { return evaluate_as_rank(r, models ? *models : models::built_in()); });
}

}  // namespace colossal::cli
