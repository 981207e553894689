#include "colossal/quantization/quantize.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/quantized/export.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/infer/perplexity.h"
#include "colossal/models/registry.h"
#include "colossal/run/exported_folder.h"
#include "colossal/run/external_names.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {
namespace {

struct QuantizeRequest {
  std::string from, model, to, method = "rtn", data, judged_by, tokenizer;
  bool as_numbers = false, no_ema = false;
  int64_t samples = 128, length = 512, timeout = 300;
  ops::RoundingOptions rounding;
};

/// Concatenates the texts and cuts them into [samples, length]. Leftover tokens at the end are not used.
at::Tensor samples_of(const EncodedTexts& texts, const QuantizeRequest& r, int64_t positions) {
  std::vector<int64_t> ids;
  for (const auto& text : texts.ids) ids.insert(ids.end(), text.begin(), text.end());
  const auto all = static_cast<int64_t>(ids.size());
  const int64_t length = std::min({r.length, positions, all}), count = std::min(r.samples, all / length);
  return at::tensor(ids, at::kLong).narrow(0, 0, count * length).reshape({count, length}).clone();
}

/// Lists one name per kind for all layers, e.g. "blocks.*.mlp.down.weight".
std::string listed(const std::vector<std::string>& names) {
  std::set<std::string> kinds;
  for (const std::string& name : names) kinds.insert("blocks.*" + name.substr(name.find('.', name.find('.') + 1)));
  return join(kinds);
}

int quantize_model(const QuantizeRequest& r, const run::Program& program) {
  const auto world = join_ranks(r.timeout, "cpu");
  require(world->size() == 1, "quantize", "the number of ranks must be 1: got ", world->size(), " ranks");
  comm::Mesh mesh(*world, {comm::Mesh::batch("data", 1)});
  run::SavedModel saved = run::load_model(r.from, mesh, {}, at::kCPU,
                                          {.model = r.model,
                                           .tokenizer = r.data.empty() && r.judged_by.empty() ? "none" : r.tokenizer,
                                           .dtype = at::kFloat,
                                           .uses_average = !r.no_ema},
                                          program);
  print_notices(saved);
  const models::ModelShape& shape = saved.model->model().shape;
  const models::HuggingFace& form = shape.architecture->hugging_face;
  require(!form.model_type.empty(), "quantize", "models of architecture ", shape.architecture->name,
          " cannot be written as a Hugging Face folder");
  const checkpoint::ExternalNames names = run::external_names(shape);
  if (!r.as_numbers)
    checkpoint::check_gptq(saved.model->parameters(), quantization::matrices_of_blocks(saved.model->parameters()),
                           r.rounding.bits, names);
  create_folder(r.to);  // before the work, so that an error does not lose its result
  at::Tensor samples;
  if (!r.data.empty()) samples = samples_of(read_texts(r.data, *saved.tokenizer, "quantize"), r, shape.positions);
  std::vector<std::vector<int64_t>> judged;
  if (!r.judged_by.empty()) judged = read_texts(r.judged_by, *saved.tokenizer, "quantize").ids;
  const auto print_perplexity = [&](const char* when) {
    if (judged.empty()) return;
    const infer::Likelihood of = infer::likelihood(*saved.model, judged, {});
    std::printf("perplexity %s: %.6g (%lld tokens)\n", when, of.perplexity(), static_cast<long long>(of.tokens));
    std::fflush(stdout);
  };
  print_perplexity("before");
  const quantization::Quantized done = quantization::quantize(
      shape, saved.model->parameters(), samples, {.method = quantization::method_of(r.method), .rounding = r.rounding});
  if (!done.without_factors.empty())
    say("quantized without factors, because no layer in front can absorb them: " + listed(done.without_factors));
  if (done.experts_without_tokens > 0)
    say(concat("no token of --data chose ", done.experts_without_tokens, " of ", done.experts,
               " experts: they are rounded to nearest"));
  print_perplexity("after");
  if (r.as_numbers)
    checkpoint::export_weights(r.to, saved.model->parameters(), names,
                               run::exported_config(saved, program.models, at::kFloat), mesh.group("data"));
  else
    checkpoint::export_gptq(r.to, saved.model->parameters(), done.codes, names,
                            run::exported_config(saved, program.models, at::kHalf), at::kHalf);
  run::write_companions(saved, r.to);
  std::printf("%s\n", r.to.c_str());
  return 0;
}

}  // namespace

int quantize(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Quantizes the matrices of a language model's blocks to 8 or 4 bits.", "colossal quantize");
  QuantizeRequest r;
  app.add_option("--from", r.from, "run folder, Hugging Face folder or GGUF file")->required();
  add_model_name(app, r.model);
  add_no_ema(app, r.no_ema);
  app.add_option("--to", r.to, "Hugging Face folder to write, with quantized values in the GPTQ layout")->required();
  app.add_option("--method", r.method, "quantization method: rtn = round to nearest; the others calibrate with --data")
      ->capture_default_str()
      ->check(CLI::IsMember(quantization::method_names()));
  app.add_option("--bits", r.rounding.bits, "bits per quantized value")
      ->capture_default_str()
      ->check(CLI::IsMember({8, 4}));
  app.add_option("--group-size", r.rounding.group, "number of inputs that share a scale, a multiple of 8")
      ->capture_default_str();
  app.add_flag("--zero-points", r.rounding.minima,
               "asymmetric 4-bit quantization: from the smallest to the largest weight of a group");
  app.add_flag("--numbers", r.as_numbers, "write dequantized fp32 weights instead of quantized values");
  app.add_option("--data", r.data, "calibration file: one text, or .jsonl with a \"text\" per line");
  app.add_option("--perplexity", r.judged_by, "evaluation file, as for --data: prints the perplexity before and after");
  app.add_option("--samples", r.samples, "maximum number of calibration samples")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--length", r.length, "maximum tokens per calibration sample")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--tokenizer", r.tokenizer, "`bytes`, or a tokenizer folder or file; default: the model's tokenizer");
  add_timeout(app, r.timeout);
  parse(app, arguments);
  require_another_path("quantize", r.from, r.to);
  require(std::filesystem::path(r.to).extension() != ".gguf", "quantize", "--to must be a folder: got ", r.to,
          "; `colossal export --to NAME.gguf --type q4_0` writes a quantized GGUF file");
  require(r.method == "rtn" || !r.data.empty(), "quantize", "method ", r.method,
          " calibrates on layer inputs; name a text file with --data");
  if (r.method == "rtn") refuse_options(app, {"--data"}, "with --method rtn, which needs no calibration");
  require(r.tokenizer != "none", "quantize", "--tokenizer must be bytes, or a tokenizer's folder or file: got none");
  if (r.data.empty()) refuse_options(app, {"--samples", "--length"}, "without --data");
  if (r.data.empty() && r.judged_by.empty())
    refuse_options(app, {"--tokenizer"}, "without --data or --perplexity: no text is read");
  if (!r.data.empty() && r.data == r.judged_by)
    require_regular_file(r.data, "quantize", "both --data and --perplexity read it");
  r.rounding.whole_zeros = r.rounding.minima;  // the folder's format stores zero points as integers
  return quantize_model(r, program ? *program : run::built_in());
}

}  // namespace colossal::cli
