#include "colossal/infer/embeddings/embed.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/embedding_output.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/comm/launch/device.h"
#include "colossal/infer/embeddings/sentence_folder.h"
#include "colossal/parallel/expert/config.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/fitted_encoding.h"

namespace colossal::cli {
namespace {

constexpr size_t kTextsAtOnce = 1024, kBytesAtOnce = 16 << 20;  // maximum texts and bytes in memory

struct EmbedRequest {
  std::string from, model, input, output, tokenizer, pooling, prompt_name, device = "auto";
  std::vector<std::string> texts;
  std::optional<int64_t> tokens;
  bool normalize = false, as_json = false, with_text = false, no_ema = false;
  int64_t timeout = 300;
  distributed::ParallelConfig layout;
  run::PrecisionConfig precision{.mode = ""};

  bool reads_standard_input() const { return texts.empty() && (input.empty() || input == "-"); }
  bool writes_npy() const { return output.ends_with(".npy"); }
};

/// Calls `take` with each text, in order.
void for_each_text(const EmbedRequest& request, const std::function<void(const NumberedLine&)>& take) {
  int64_t number = 0;
  for (const std::string& text : request.texts) take({++number, text});
  if (!request.texts.empty()) return;
  std::ifstream file;
  if (!request.reads_standard_input()) {
    file.open(request.input, std::ios::binary);
    require(file.good() && !std::filesystem::is_directory(request.input), "embed", "cannot read ", request.input);
  }
  std::istream& in = request.reads_standard_input() ? std::cin : file;
  for (std::string line; std::getline(in, line);) take({++number, std::move(line)});
  require(!in.bad(), "embed", "cannot read ", request.input.empty() ? "standard input" : request.input, " to its end");
}

std::string prompt_of(const EmbedRequest& request, const infer::SentenceFolder& folder) {
  const std::string& name = request.prompt_name.empty() ? folder.prompt_name : request.prompt_name;
  if (name.empty()) return "";
  const std::string names = join(folder.prompts, ", ", [](const auto& prompt) { return prompt.first; });
  require(folder.prompts.contains(name), "embed", "--prompt-name must be one of the folder's prompts: got ", name,
          "; available: ", names.empty() ? "none" : names);
  return folder.prompts.at(name);
}

/// Converts texts to vectors, some at a time.
class TextEmbedder {
 public:
  TextEmbedder(const EmbedRequest& request, const run::SavedModel& saved, const infer::SentenceFolder& folder,
               infer::Embedder& embedder, EmbeddingOutput* output)
      : request_(request), tokenizer_(*saved.tokenizer), embedder_(embedder), output_(output) {
    prompt_ = prompt_of(request, folder);
    const int64_t positions = saved.model->model().shape.positions;
    max_tokens_ = std::min(positions, request.tokens.value_or(folder.tokens.value_or(positions)));
  }

  void take(const NumberedLine& line) {
    const std::string text = request_.as_json ? text_of_line(line, "embed") : line.text;
    held_ += text.size();
    lines_.push_back({line.number, text});
    if (lines_.size() == kTextsAtOnce || held_ >= kBytesAtOnce) embed_held();
  }

  void finish() {
    embed_held();
    if (output_) output_->finish();
    if (output_ && cut_ > 0)
      say(concat(cut_, " texts have more than ", max_tokens_, " tokens and were truncated, first text ", first_cut_));
  }

 private:
  void embed_held() {
    std::vector<text::FittedEncoding> encoded(lines_.size());
    text::for_each_index(lines_.size(), at::get_num_threads(), [&](size_t i) {
      encoded[i] = text::encode_fitted(tokenizer_, prompt_ + lines_[i].text, static_cast<size_t>(max_tokens_));
    });
    std::vector<std::vector<int64_t>> ids;
    for (size_t i = 0; i < lines_.size(); ++i) {
      require(!encoded[i].ids.empty(), "embed", "text ", lines_[i].number,
              " is empty, and the tokenizer adds no special tokens; leave it out");
      if (encoded[i].is_cut && cut_++ == 0) first_cut_ = lines_[i].number;
      ids.push_back(std::move(encoded[i].ids));
    }
    const at::Tensor vectors = embedder_.embed(ids).contiguous();
    for (size_t i = 0; output_ && i < lines_.size(); ++i)
      output_->put(lines_[i].text, vectors[static_cast<int64_t>(i)].const_data_ptr<float>(),
                   static_cast<size_t>(vectors.size(1)));
    lines_.clear();
    held_ = 0;
  }

  const EmbedRequest& request_;
  const text::Tokenizer& tokenizer_;
  infer::Embedder& embedder_;
  EmbeddingOutput* output_;  // null = another rank writes
  std::string prompt_;
  int64_t max_tokens_ = 0, cut_ = 0, first_cut_ = 0;
  std::vector<NumberedLine> lines_;
  size_t held_ = 0;
};

std::unique_ptr<EmbeddingOutput> make_output(const EmbedRequest& request, int64_t size) {
  if (!request.writes_npy()) return json_output(request.output, request.with_text);
  int64_t texts = 0;
  for_each_text(request, [&](const NumberedLine&) { ++texts; });
  return npy_output(request.output, texts, size);
}

int embed_as_rank(const EmbedRequest& request, const run::Program& program) {
  const infer::SentenceFolder folder = infer::read_sentence_folder(request.from);
  const infer::Pooling pooling =
      !request.pooling.empty() ? infer::pooling_of(request.pooling) : folder.pooling.value_or(infer::Pooling::Mean);
  const at::Device device = comm::choose_device(request.device, 0);
  const auto world = join_ranks(request.timeout, device.is_cuda() ? "cuda" : "cpu");
  require(world->size() == request.layout.ranks(), "parallel", "the number of ranks must match the layout: got ",
          world->size(), " ranks, pipeline ", request.layout.pipeline.size, " * expert ", request.layout.expert.size,
          " * tensor ", request.layout.tensor.size);
  if (world->rank() == 0) warn_of_unused_gpus(request.device);
  comm::Mesh mesh(*world, request.layout.axes());
  run::Loading loading{.model = request.model, .tokenizer = request.tokenizer, .headless = true};
  loading.uses_average = !request.no_ema;
  loading.pooler = pooling == infer::Pooling::Pooler;
  if (!request.precision.mode.empty()) loading.dtype = request.precision.dtype();
  const run::SavedModel saved = run::load_model(
      folder.model, mesh, request.layout, comm::choose_device(request.device, world->local_rank()), loading, program);
  if (world->rank() == 0) print_notices(saved);
  infer::Embedder embedder(*saved.model, {.pooling = pooling, .normalize = request.normalize || folder.normalize});
  const auto output = world->rank() == 0 ? make_output(request, saved.model->model().shape.hidden) : nullptr;
  TextEmbedder texts(request, saved, folder, embedder, output.get());
  for_each_text(request, [&](const NumberedLine& line) { texts.take(line); });
  texts.finish();
  return 0;
}

void check_embed_flags(const EmbedRequest& r) {
  const auto refuse = [](bool is_wrong, const char* what) {
    if (is_wrong) throw UsageError(concat("colossal embed: ", what));
  };
  refuse(!r.texts.empty() && !r.input.empty(), "--text and --input exclude each other");
  refuse(!r.texts.empty() && r.as_json, "--text and --json exclude each other");
  refuse(r.writes_npy() && r.with_text, "--with-text needs JSON lines: got --output with an .npy file");
  refuse(r.writes_npy() && r.reads_standard_input(),
         "an .npy file begins with the number of texts, which standard input does not show; name a file with --input");
  refuse(r.tokenizer == "none", "--tokenizer must be bytes, or a tokenizer's folder or file: got none");
  refuse(r.layout.ranks() > 1 && r.reads_standard_input(),
         "several ranks cannot read standard input; name a file with --input");
}

void add_texts(CLI::App& app, EmbedRequest& r) {
  app.add_option("--text", r.texts, "text to embed; repeatable")->take_all();
  app.add_option("--input", r.input, "file with one text per line; default, or -: standard input");
  app.add_flag("--json", r.as_json, "each line is a JSON string, or an object with a string in \"text\"");
  app.add_option(
      "--output", r.output,
      "file for the vectors, one JSON line each, or a NumPy array if its name ends in .npy; default: standard output");
  app.add_flag("--with-text", r.with_text, "include the text in the JSON lines");
}

}  // namespace

int embed(const Arguments& arguments, const run::Program* program) {
  CLI::App app(
      "Computes one vector per text from the hidden states of BERT, of a decoder model or of a sentence-transformers "
      "folder.",
      "colossal embed");
  EmbedRequest r;
  app.add_option("--from", r.from, "run folder, Hugging Face folder or sentence-transformers folder")->required();
  add_model_name(app, r.model);
  add_no_ema(app, r.no_ema);
  add_texts(app, r);
  app.add_option("--pooling", r.pooling,
                 "method that combines the token states into one vector; default: the folder's, or mean")
      ->check(CLI::IsMember(infer::pooling_names()));
  app.add_flag("--normalize", r.normalize, "scale vectors to length 1");
  app.add_option(
         "--max-tokens", r.tokens,
         "maximum tokens per text, longer ones are truncated; default: the folder's limit, or the model's positions")
      ->check(CLI::PositiveNumber);
  app.add_option("--prompt-name", r.prompt_name, "name of one of the folder's prompts, to put in front of each text");
  app.add_option("--tokenizer", r.tokenizer, "`bytes`, or a tokenizer folder or file; default: the model's tokenizer");
  app.add_option("--parallel.tensor,--parallel.tensor.size", r.layout.tensor.size,
                 "number of ranks that share each matrix")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_expert_options(app, r.layout);
  app.add_option("--parallel.pipeline,--parallel.pipeline.size", r.layout.pipeline.size,
                 "number of ranks that split the model's blocks")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--run.device", r.device, "device: auto, cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--precision,--precision.mode", r.precision.mode,
                 "dtype of weights and activations; default: that of the run's master weights, or fp32")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  add_timeout(app, r.timeout);
  parse(app, arguments);
  check_embed_flags(r);
  if (!r.reads_standard_input() && r.layout.ranks() > 1)
    require_regular_file(r.input, "embed", "several ranks read it");
  if (!r.reads_standard_input() && r.writes_npy())
    require_regular_file(r.input, "embed", "an .npy file is written, for which its texts are counted first");
  r.layout.axes();
  parallel::check_expert_tensor(r.layout.expert, r.layout.tensor);
  parallel::check_expert_node(r.layout.expert, r.layout.tensor);
  return with_ranks(r.layout.ranks(), "embed", arguments,
                    [&] { return embed_as_rank(r, program ? *program : run::built_in()); });
}

}  // namespace colossal::cli
