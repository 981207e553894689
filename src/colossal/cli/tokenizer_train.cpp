#include "colossal/cli/tokenizer_train.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/suggest.h"
#include "colossal/text/bpe_trainer.h"

namespace colossal::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBytesAtOnce = size_t{16} << 20;  // what is in memory, but for the words

void count_file(const std::string& file, int threads, text::WordCounts& counts) {
  std::ifstream in(file, std::ios::binary);
  require(in.good() && !fs::is_directory(file), "tokenizer", "cannot read ", file);
  std::vector<std::string> lines;
  size_t bytes = 0;
  const auto count = [&] {
    text::count_words({lines.begin(), lines.end()}, threads, counts);
    lines.clear();
    bytes = 0;
  };
  for (std::string line; std::getline(in, line);) {
    if (!in.eof()) line += '\n';
    bytes += line.size();
    lines.push_back(std::move(line));
    if (bytes >= kBytesAtOnce) count();
  }
  require(!in.bad(), "tokenizer", "cannot read ", file, " to its end");
  count();
}

int tokenizer_train(const Arguments& arguments) {
  CLI::App app("Learns a byte-level BPE vocabulary from text and writes a tokenizer.json.", "colossal tokenizer train");
  text::BpeTraining training{};
  std::string output;
  std::vector<std::string> files;
  int threads = 1;
  app.add_option("--vocabulary-size", training.vocabulary_size, "tokens: special ones, 256 bytes and what is learnt")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--output", output, "folder that gets the tokenizer.json")->required();
  app.add_option("--special", training.special, "a token that is itself wherever it stands; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);  // or [CLS] would be a list of CLS
  app.add_option("--least-count", training.least_count, "how often a pair must be there to be joined")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--threads", threads, "that count words")->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("files", files, "texts to learn from")->required();
  parse(app, arguments);
  const fs::path file = fs::path(output) / "tokenizer.json";
  require(!fs::exists(file), "tokenizer", file.string(), " is there already");
  text::WordCounts counts;
  for (const std::string& name : files) count_file(name, threads, counts);
  const text::LearnedBpe learned = text::learn_bpe(counts, training);
  fs::create_directories(output);
  write_file(file.string(), text::tokenizer_json(learned).dump(1));
  std::printf("%zu tokens, %zu merges, learnt from %zu words: %s\n", learned.tokens.size(), learned.merges.size(),
              counts.size(), file.c_str());
  return 0;
}

}  // namespace

int tokenizer(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    std::printf("usage: colossal tokenizer train ARGUMENTS      colossal tokenizer train --help\n");
    return 0;
  }
  if (arguments[0] == "train") return tokenizer_train({arguments.begin() + 1, arguments.end()});
  throw UsageError("unknown word `" + arguments[0] + "`" + did_you_mean(arguments[0], {"train"}) +
                   "; `colossal tokenizer` knows `train`");
}

}  // namespace colossal::cli
