// A folder of log-probabilities of texts, so that a model computes them once.
//
//   ScoreCache cache("runs/dpo/reference");
//   cache.read();
//   for (const TextKey& key : keys_of(batch, 2))
//     if (!cache.find(key)) missing.push_back(key);
//   cache.add(key, -12.5);
//   cache.flush();                                       // a file for all that were added
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/tensor/batch.h"

namespace colossal::align {

/// Texts of a row of preferences: the chosen and the rejected one, or a rated one and its mismatched one.
inline constexpr int64_t kTexts = 2;

/// The model and the data from which a cache was computed. The file origin.json in its folder has them.
struct ScoreOrigin {
  std::string source;              ///< the model, for people
  std::string checkpoint, blocks;  ///< a run's checkpoint, and its manifest's checksum
  std::string weights, precision;  ///< a checksum, and the mode of the numbers
  /// Format of the frozen matrices: "values", "bf16", "int8", "nf4", "nf4 with double", "codes of the folder"; and
  /// modules that have none: "nf4 without lm_head"
  std::string base = "values";
  std::string shape;                           ///< checksum of the keys of [model] that change what weights compute
  std::string tokenizer, chat_template, data;  ///< checksums
  void fields(Fields& f);
  /// Returns "weights (1f.. and not 2e..)" and other members that differ, joined; "" if none does. Where a model is
  /// counts only if it has no checksum.
  std::string differences(const ScoreOrigin& other) const;
};

/// The XXH3-128 of the tokens of a text and of its labels, up to the last one that counts. It does not depend on the
/// row, the padding or the order of texts.
struct TextKey {
  uint64_t high = 0, low = 0;
  bool operator==(const TextKey&) const = default;
};

/// Returns the keys of the first `texts` documents of each row, row by row. `batch` is whole and on the host. Cost:
/// memory speed.
std::vector<TextKey> keys_of(const tensor::Batch& batch, int64_t texts);

/// Files of scores in a folder, each complete or absent: a process that is killed loses the scores since its last
/// flush(). Several processes may add files to one folder. Memory: about 60 bytes a text.
/// Errors ("file"): a file that cannot be read or written; the message names a full disk. ("reference"): a damaged
/// file.
class ScoreCache {
 public:
  explicit ScoreCache(std::string folder) : folder_(std::move(folder)) {}

  /// Returns what the folder was computed from; nothing if there is no cache.
  std::optional<ScoreOrigin> origin() const;
  /// Makes the folder, and names what is put into it.
  void begin(const ScoreOrigin& origin) const;
  /// Removes the files of a cache, and no others.
  void remove() const;
  /// Reads all files.
  void read();

  std::optional<double> find(const TextKey& key) const;
  void add(const TextKey& key, double score);
  int64_t size() const { return static_cast<int64_t>(scores_.size()); }
  /// Adds all scores of another cache.
  void add(const ScoreCache& other);
  /// Writes a file with the scores that were added since the last call, if there are some.
  void flush();
  /// Forgets which scores were added since the last flush(): another rank writes them.
  void leave_to_others() { added_.clear(); }
  const std::string& folder() const { return folder_; }

 private:
  struct Hash {
    size_t operator()(const TextKey& key) const { return key.low; }
  };
  std::string folder_;
  std::unordered_map<TextKey, double, Hash> scores_;
  std::vector<std::pair<TextKey, double>> added_;
};

}  // namespace colossal::align
