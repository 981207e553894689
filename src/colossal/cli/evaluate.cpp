#include "colossal/cli/evaluate.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json.h"
#include "colossal/cli/model_options.h"
#include "colossal/cli/text_lines.h"
#include "colossal/infer/perplexity.h"
#include "colossal/text/utf8.h"

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

EncodedTexts read_texts(const std::string& path, const text::Tokenizer& tokenizer, const char* command) {
  std::ifstream file(path, std::ios::binary);
  std::error_code failed;
  require(file.good() && !std::filesystem::is_directory(path, failed), command,
          "cannot read the file of texts: ", path);
  std::vector<NumberedLine> texts;
  if (has_ending(path, ".jsonl")) {
    int64_t number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") != std::string::npos)
        texts.push_back({number, text_of({number, line}, command)});
    }
  } else {
    texts.push_back({1, std::string(std::istreambuf_iterator<char>(file), {})});
  }
  require(!file.bad(), command, "cannot read the file of texts to its end: ", path);
  EncodedTexts encoded;
  for (const NumberedLine& line : texts) {
    require(text::is_utf8(line.text), command, "texts must be UTF-8: got other bytes in ", path);
    if (line.text.empty()) continue;
    encoded.ids.push_back(tokenizer.encode_prompt(line.text));
    const std::vector<int64_t>& ids = encoded.ids.back();
    encoded.bytes += static_cast<int64_t>(line.text.size());
    if (!ids.empty()) encoded.bytes -= static_cast<int64_t>(tokenizer.piece(ids.front()).size());
  }
  require(!encoded.ids.empty(), command, "the file of texts is empty: ", path);
  return encoded;
}

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
