#include "colossal/run/learned_words.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/clip_text_words.h"
#include "colossal/run/adapter_weights.h"
#include "colossal/run/average_weights.h"
#include "colossal/run/data.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;

constexpr const char *kWordsFile = "learned_embeds.safetensors", *kUnnamed = "emb_params", *kFirst = "clip_l",
                     *kSecond = "clip_g", *kTrainedRows[] = {"text.learned.weight", "text_2.learned.weight"};

/// Reads the vectors that a run learned, for each text encoder of its model.
std::vector<at::Tensor> rows_of_run(const std::string& run, int64_t rows) {
  const std::string newest = newest_checkpoint(run, checkpoint::step_folders(RunFolder(run).checkpoints()));
  const checkpoint::Manifest manifest = checkpoint::Manifest::read(newest + "/manifest.json");
  std::vector<at::Tensor> learned;
  checkpoint::TrainingState state;
  for (const char* trained : kTrainedRows) {
    const std::string name = concat("model.", trained);
    const auto found = manifest.tensors.find(name);
    if (!learned.empty() && found == manifest.tensors.end()) break;
    require(found != manifest.tensors.end() && found->second.shape.size() == 2 && found->second.shape[0] == rows,
            "adapter", "the checkpoint ", newest, " must have ", rows, " learned vectors: got others");
    learned.push_back(at::zeros(found->second.shape, at::kDouble));
    state.tensors.push_back({name, learned.back(), tensor::ShardSpec::whole(found->second.shape)});
  }
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    checkpoint::load(newest, state, mesh.all(), mesh.coordinates(), "model.", {}, averages_in(newest, true, state));
  });
  return learned;
}

std::vector<LearnedWord> words_of_run(const std::string& run) {
  const LowRankKeys keys = adapter_keys(stored_config(run));
  std::vector<LearnedWord> words = words_of(keys);
  const std::vector<at::Tensor> all = rows_of_run(run, keys.rank * static_cast<int64_t>(words.size()));
  for (size_t i = 0; i < words.size(); ++i) {
    const auto own = [&](const at::Tensor& rows) {
      return rows.narrow(0, keys.rank * static_cast<int64_t>(i), keys.rank);
    };
    words[i].rows = own(all.front());
    if (all.size() == 2) words[i].second = own(all.back());
  }
  return words;
}

/// Returns the files that a path names: itself, or of a folder that of diffusers, else all of safetensors.
std::vector<std::string> words_files(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return {path};
  if (const std::string whole = concat(path, "/", kWordsFile); fs::exists(whole, ignored)) return {whole};
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  require(!files.empty(), "adapter", "learned words must be in a folder with .safetensors files: got none in ", path);
  return files;
}

void check_words_file(const std::string& file) {
  std::error_code ignored;
  const std::string end = fs::path(file).extension();
  require(end != ".pt" && end != ".bin" && end != ".pth" && end != ".ckpt", "adapter",
          "learned words must be in a file of safetensors: got ", file,
          ", whose Python objects can run code when they are opened; convert it to safetensors");
  require(fs::is_regular_file(file, ignored), "adapter", "learned words must be in a file or a run: there is none at ",
          file);
}

std::vector<LearnedWord> words_of_file(const std::string& file) {
  check_words_file(file);
  const checkpoint::SafetensorsReader reader(file);
  std::vector<LearnedWord> words;
  std::vector<std::string> others;
  for (const auto& [name, entry] : reader.entries()) {
    const at::Tensor rows = reader.tensor(name);
    if (!rows.is_floating_point() || rows.dim() < 1 || rows.dim() > 2 || rows.numel() == 0) {
      others.push_back(printable(name));
      continue;
    }
    const bool is_unnamed = name == kUnnamed || name == kFirst || name == kSecond;
    words.push_back({.word = is_unnamed ? fs::path(file).stem().string() : name,
                     .rows = (rows.dim() == 1 ? rows.unsqueeze(0) : rows).to(at::kDouble)});
  }
  if (words.size() == 2 && reader.contains(kFirst) && reader.contains(kSecond)) {  // by name, so clip_g comes first
    words.back().second = words.front().rows;
    words.erase(words.begin());
    require(words[0].rows.size(0) == words[0].second.size(0), "adapter", file, " must have as many vectors in ", kFirst,
            " as in ", kSecond, ": got ", words[0].rows.size(0), " and ", words[0].second.size(0));
  }
  require(others.empty() && !words.empty(), "adapter", file,
          " must have words with their vectors, [rows, features], alone: got ",
          others.empty() ? "none" : join(others) + ", which belong to another kind of adapter");
  return words;
}

void check_words(const std::vector<LearnedWord>& words) {
  std::set<std::string> seen;
  for (const LearnedWord& one : words) {
    require(!one.word.empty(), "adapter", "a learned word must have letters: got an empty one");
    require(seen.insert(one.word).second, "adapter", "each learned word must be named once: got ", printable(one.word),
            " twice");
  }
}

}  // namespace

bool learns_words(const Config& config) { return adapter_keys(config).kind == kWordsKind; }

bool is_words_run(const std::string& path) { return is_run(path) && learns_words(stored_config(path)); }

std::vector<LearnedWord> words_of(const LowRankKeys& keys) {
  require(!keys.targets.empty() && keys.targets != LowRankKeys().targets, "adapter",
          "adapter.targets must name the words to learn with adapter.kind = \"textual-inversion\": got none; set "
          "adapter.targets = [\"<cat>=cat\"]");
  std::vector<LearnedWord> words;
  for (const std::string& target : keys.targets) {
    const size_t at = target.rfind('=');
    words.push_back({.word = target.substr(0, at), .start = at == std::string::npos ? "" : target.substr(at + 1)});
  }
  check_words(words);
  return words;
}

LowRankKeys with_vectors(const Config& config, LowRankKeys keys) {
  if (!config.tables.values().contains("adapter.rank")) keys.rank = 1;
  return keys;
}

AdapterKind words_kind() {
  const auto check = [](const models::ModelShape& shape) {
    require(models::learned_rows(shape) > 0, "adapter",
            "adapter.kind = \"textual-inversion\" needs a model that draws what captions say: got another one");
  };
  return {.name = kWordsKind,
          .keys = {"rank", "targets", "from"},
          .check = check,
          .is_own = models::is_learned_words,
          .complete = with_vectors};
}

std::vector<LearnedWord> read_words(const std::vector<std::string>& paths) {
  std::vector<LearnedWord> words;
  const auto add = [&](std::vector<LearnedWord> own) { std::move(own.begin(), own.end(), std::back_inserter(words)); };
  for (const std::string& path : paths)
    if (is_words_run(path))
      add(words_of_run(path));
    else
      for (const std::string& file : words_files(path)) add(words_of_file(file));
  check_words(words);
  return words;
}

std::vector<LearnedWord> words_of_encoder(std::vector<LearnedWord> words, int64_t encoder, int64_t encoders) {
  for (LearnedWord& one : words) {
    require(one.second.defined() == (encoders == 2), "adapter", "the learned word ", printable(one.word),
            " must have vectors for ", encoders, " text encoders of CLIP, as the model: got ",
            one.second.defined() ? 2 : 1, "; it belongs to another base");
    if (encoder == 1) one.rows = one.second;
    one.second = at::Tensor();
  }
  return words;
}

at::Tensor rows_of(const std::vector<LearnedWord>& words, int64_t features) {
  std::vector<at::Tensor> rows;
  for (const LearnedWord& one : words) {
    require(one.rows.size(1) == features, "adapter", "the vectors of ", printable(one.word), " must have ", features,
            " features, as the text encoder: got ", one.rows.size(1), "; they belong to another base");
    rows.push_back(one.rows);
  }
  return at::cat(rows);
}

std::vector<text::CaptionWord> caption_words(const std::vector<LearnedWord>& words, int64_t rows) {
  std::vector<text::CaptionWord> placed;
  for (const LearnedWord& one : words) placed.push_back({one.word, one.rows.defined() ? one.rows.size(0) : rows});
  return placed;
}

void fill_words(const std::vector<at::Tensor>& rows, const models::ModelShape& shape, const nn::Parameters& parameters,
                const std::vector<checkpoint::NamedTensor>& tensors, comm::Mesh& mesh) {
  AdapterWeights weights;
  for (size_t i = 0; i < rows.size(); ++i) weights.parameters[kTrainedRows[i]] = rows[i];
  for (const checkpoint::NamedTensor& tensor : tensors)
    if (models::is_learned_words(tensor.name)) weights.provided.insert(tensor.name);  // else another stage has them
  fill_adapters(weights, shape, parameters, tensors, mesh);
}

at::Tensor first_rows(const LowRankKeys& keys, const text::Captions& captions, const at::Tensor& table, int64_t encoder,
                      int64_t encoders) {
  std::vector<LearnedWord> words = words_of(keys);
  if (!keys.from.empty()) {
    const std::vector<LearnedWord> given = words_of_encoder(read_words({keys.from}), encoder, encoders);
    for (LearnedWord& one : words) {
      const auto found =
          std::find_if(given.begin(), given.end(), [&](const LearnedWord& other) { return other.word == one.word; });
      require(found != given.end(), "adapter", "adapter.from = ", keys.from,
              " must have the words of adapter.targets: ", "got none for ", printable(one.word), ", but ",
              printable(given.front().word));
      require(found->rows.size(0) == keys.rank, "adapter", "adapter.rank must be the number of vectors of ",
              printable(one.word), " in ", keys.from, ", ", found->rows.size(0), ": got ", keys.rank);
      one.rows = found->rows;
    }
    return rows_of(words, table.size(1));
  }
  for (LearnedWord& one : words) {
    at::Tensor first = at::zeros({table.size(1)}, at::kDouble);
    if (!one.start.empty()) first = table[captions(one.start).ids.at(1)].to(at::kDouble);  // behind the begin token
    one.rows = first.expand({keys.rank, -1}).contiguous();
  }
  return rows_of(words, table.size(1));
}

void export_words(const std::string& run, const std::string& to) {
  create_folder(to);
  std::map<std::string, at::Tensor> tensors;
  const auto written = [](const at::Tensor& rows) { return rows.to(at::kFloat).contiguous(); };
  for (const LearnedWord& one : words_of_run(run)) {
    if (!one.second.defined()) {
      tensors[one.word] = written(one.rows);
      continue;
    }
    require(one.word.find('/') == std::string::npos, "export",
            "the words of a model with two text encoders must be names of files: got ", one.word);
    checkpoint::write_safetensors(concat(to, "/", one.word, ".safetensors"),
                                  {{kFirst, written(one.rows)}, {kSecond, written(one.second)}});
  }
  if (!tensors.empty()) checkpoint::write_safetensors(concat(to, "/", kWordsFile), tensors);
}

}  // namespace colossal::run
