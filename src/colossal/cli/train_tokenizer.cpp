#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/text_start.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/text_lines.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/training/tokenizer_training.h"

namespace colossal::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBytesAtOnce = size_t{16} << 20;  // maximum bytes of texts in memory

struct TrainingRequest {
  text::TokenizerTraining training;
  std::vector<std::string> files;
  std::string to, like, end;
  bool as_json = false;
};

void read_texts(const std::string& path, bool as_json, text::TokenizerTrainer& trainer) {
  require(!fs::is_directory(path), "tokenizer", "cannot read ", path, ": it is a folder; name its files");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "tokenizer", "cannot read ", path);
  std::vector<std::string> texts;
  size_t bytes = 0;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    if (++number == 1) require_text(line, path, "tokenizer");
    if (as_json)
      line = text_of_line({number, std::move(line)});
    else if (!file.eof())
      line += '\n';
    bytes += line.size();
    texts.push_back(std::move(line));
    if (bytes < kBytesAtOnce) continue;
    trainer.add(texts);
    texts.clear();
    bytes = 0;
  }
  require(!file.bad(), "tokenizer", "cannot read ", path, " after line ", number);
  trainer.add(texts);
}

nlohmann::json like_of(const std::string& name) {
  if (name.empty()) return {};
  const std::string path = fs::is_directory(name) ? name + "/tokenizer.json" : name;
  return read_json_object(path, "tokenizer", {.bytes = int64_t{256} << 20});
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes << '\n';
  file.close();
  require(file.good(), "tokenizer", "cannot write ", path);
}

int train_tokenizer(const Arguments& arguments) {
  CLI::App app("Learns the vocabulary of a tokenizer from the lines of files.", "colossal tokenizer train");
  TrainingRequest r;
  r.training.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  app.add_option("files", r.files, "text files, one text per line")->required();
  app.add_option("--to", r.to, "folder to write, with tokenizer.json and tokenizer_config.json")->required();
  app.add_option("--kind", r.training.kind, "type of the vocabulary: bpe (byte-level) or unigram")
      ->capture_default_str()
      ->check(CLI::IsMember({"bpe", "unigram"}));
  app.add_option("--vocabulary", r.training.vocabulary, "vocabulary size in tokens")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--special", r.training.special,
                 "special token, which no text is encoded to; repeatable; special tokens get the first ids")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);  // otherwise [CLS] would be a list of CLS, and a file after it a token
  app.add_option("--end", r.end, "special token that ends a document; default: <|endoftext|>, for unigram </s>");
  const CLI::Option* min_frequency = app.add_option("--min-frequency", r.training.min_frequency,
                                                    "minimum number of occurrences of a pair that is merged (bpe)")
                                         ->capture_default_str()
                                         ->check(CLI::NonNegativeNumber);
  app.add_option("--like", r.like, "tokenizer.json, or a folder with one, whose text splitting and spelling to use");
  app.add_flag("--json", r.as_json, "read each line as a JSON string, or an object with a string in \"text\"");
  app.add_option("--threads", r.training.threads, "number of threads that read")
      ->default_str("all cores")
      ->check(CLI::Range(1, 1024));
  parse(app, arguments);
  if (min_frequency->count() > 0 && r.training.kind != "bpe")
    throw UsageError("colossal tokenizer train: --min-frequency needs --kind bpe");
  if (r.end.empty()) r.end = r.training.kind == "bpe" ? "<|endoftext|>" : "</s>";
  auto& special = r.training.special;
  if (std::find(special.begin(), special.end(), r.end) == special.end()) special.push_back(r.end);
  require(!text::has_tokenizer(r.to), "tokenizer", r.to, " already holds a tokenizer; name another folder with --to");
  r.training.like = like_of(r.like);
  text::TokenizerTrainer trainer(r.training);
  for (const std::string& file : r.files) read_texts(file, r.as_json, trainer);
  const nlohmann::ordered_json trained = std::move(trainer).trained();
  std::error_code error;
  fs::create_directories(r.to, error);
  require(!error, "tokenizer", "cannot make the folder ", r.to, ": ", error.message());
  write_file(r.to + "/tokenizer.json", trained.dump(2));
  const nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", r.end}};
  write_file(r.to + "/tokenizer_config.json", config.dump(2));
  std::printf("%s/tokenizer.json: %zu tokens\n", r.to.c_str(), trained["model"]["vocab"].size());
  return 0;
}

}  // namespace

int tokenizer(const Arguments& arguments) {
  if (arguments == Arguments{kMarkdownHelp})
    throw HelpWanted("## colossal tokenizer\n\n#" + help_of(train_tokenizer, kMarkdownHelp));
  if (!arguments.empty() && arguments[0] == "train") return train_tokenizer({arguments.begin() + 1, arguments.end()});
  const bool asks = !arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h");
  if (!asks) throw UsageError("colossal tokenizer: the subcommand must be `train`; see `tokenizer train --help`");
  std::printf("usage: colossal tokenizer train --to FOLDER FILE...      colossal tokenizer train --help\n");
  return 0;
}

}  // namespace colossal::cli
