#include "colossal/align/score_cache.h"

#include <ATen/ATen.h>

#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string_view>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/data/ignored_label.h"

namespace colossal::align {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "colossal scores 1\n", kSuffix = ".scores";
constexpr size_t kRecord = 2 * sizeof(uint64_t) + sizeof(double), kDigits = 32;

std::string origin_file(const std::string& folder) { return folder + "/origin.json"; }

/// Returns the files of scores in a folder.
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == kSuffix) files.push_back(entry.path());
  return files;
}

uint64_t number_of(std::string_view digits) {
  uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

/// Returns a name that no other process chooses.
std::string new_name() {
  std::random_device random;
  const std::array<uint32_t, 4> words{random(), random(), random(), random()};
  return checksum(words.data(), sizeof words);
}

TextKey key_of_text(const int64_t* ids, const int64_t* labels, int64_t tokens) {
  Checksum sum;
  sum.update(ids, static_cast<size_t>(tokens) * sizeof(int64_t));
  sum.update(labels, static_cast<size_t>(tokens) * sizeof(int64_t));
  const std::string digits = sum.hex();
  return {number_of(std::string_view(digits).substr(0, 16)), number_of(std::string_view(digits).substr(16))};
}

}  // namespace

void ScoreOrigin::fields(Fields& f) {
  f.member("source", source);
  f.member("checkpoint", checkpoint);
  f.member("blocks", blocks);
  f.member("weights", weights);
  f.member("precision", precision);
  f.optional(base == "values").member("base", base);
  f.member("shape", shape);
  f.member("tokenizer", tokenizer);
  f.member("chat_template", chat_template);
  f.member("data", data);
}

std::string ScoreOrigin::differences(const ScoreOrigin& other) const {
  std::vector<std::string> changed;
  const auto compare = [&](const char* what, const std::string& own, const std::string& others) {
    if (own != others) changed.push_back(concat(what, " (", others, " and not ", own, ")"));
  };
  if (weights.empty() || other.weights.empty()) compare("model", source, other.source);
  compare("weights", weights, other.weights);
  compare("precision", precision, other.precision);
  compare("format of the base", base, other.base);
  compare("keys of the model", shape, other.shape);
  compare("tokenizer", tokenizer, other.tokenizer);
  compare("chat template", chat_template, other.chat_template);
  compare("data", data, other.data);
  return join(changed);
}

std::vector<TextKey> keys_of(const tensor::Batch& batch, int64_t texts) {
  const auto on_host = [](const at::Tensor& tensor) { return tensor.to(at::kCPU, at::kLong).contiguous(); };
  const at::Tensor ids = on_host(batch.at("ids")), labels = on_host(batch.at("labels")),
                   documents = on_host(batch.at("documents"));
  const int64_t ignored = batch.field("labels").ignored.value_or(data::kIgnored), tokens = ids.size(1);
  std::vector<TextKey> keys;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    const int64_t* id = ids.const_data_ptr<int64_t>() + row * tokens;
    const int64_t* label = labels.const_data_ptr<int64_t>() + row * tokens;
    const int64_t* document = documents.const_data_ptr<int64_t>() + row * tokens;
    int64_t first = 0;
    for (int64_t text = 0; text < texts; ++text) {
      while (first < tokens && document[first] < text) ++first;
      int64_t end = first, counted = first;
      for (; end < tokens && document[end] == text; ++end)
        if (label[end] != ignored) counted = end + 1;
      keys.push_back(key_of_text(id + first, label + first, counted - first));
      first = end;
    }
  }
  return keys;
}

std::optional<ScoreOrigin> ScoreCache::origin() const {
  const std::string path = origin_file(folder_);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  return read_stored<ScoreOrigin>(read_json_object(path, "reference"), "reference");
}

void ScoreCache::begin(const ScoreOrigin& origin) const {
  create_folder(folder_);
  write_file(origin_file(folder_), json_line(to_json_object(origin)) + "\n");
}

void ScoreCache::remove() const {
  for (const std::string& file : files_in(folder_)) fs::remove(file);
  fs::remove(origin_file(folder_));
}

void ScoreCache::read() {
  for (const std::string& file : files_in(folder_)) {
    const std::string bytes = read_file(file, std::numeric_limits<int64_t>::max());
    const size_t end = bytes.size() < kMagic.size() + kDigits ? 0 : bytes.size() - kDigits;
    const bool is_whole = end > 0 && bytes.starts_with(kMagic) && (end - kMagic.size()) % kRecord == 0 &&
                          checksum(bytes.data(), end) == std::string_view(bytes).substr(end);
    require(is_whole, "reference", file, " must have its checksum: got a damaged file of ", bytes.size(),
            " bytes; delete it, and its texts are computed again if the reference is still there");
    for (size_t at = kMagic.size(); at < end; at += kRecord) {
      TextKey key;
      double score = 0;
      std::memcpy(&key, bytes.data() + at, sizeof key);
      std::memcpy(&score, bytes.data() + at + sizeof key, sizeof score);
      scores_[key] = score;
    }
  }
}

std::optional<double> ScoreCache::find(const TextKey& key) const {
  const auto found = scores_.find(key);
  return found == scores_.end() ? std::nullopt : std::optional(found->second);
}

void ScoreCache::add(const TextKey& key, double score) {
  if (scores_.emplace(key, score).second) added_.emplace_back(key, score);
}

void ScoreCache::add(const ScoreCache& other) {
  for (const auto& [key, score] : other.scores_) add(key, score);
}

void ScoreCache::flush() {
  if (added_.empty()) return;
  std::string bytes(kMagic);
  for (const auto& [key, score] : added_) {
    bytes.append(reinterpret_cast<const char*>(&key), sizeof key);
    bytes.append(reinterpret_cast<const char*>(&score), sizeof score);
  }
  bytes += checksum(bytes);
  write_file(concat(folder_, "/", new_name(), kSuffix), bytes);
  added_.clear();
}

}  // namespace colossal::align
