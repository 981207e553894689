// Samples of labelled texts: a file has one text and its class per line.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// Labelled texts in memory.
struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<int64_t> labels;
  int64_t classes = 0;               ///< number of classes; labels are below it
  std::vector<std::string> names{};  ///< names of the classes, in order; empty = labels are numbers or LABEL_i
  bool are_unnamed = false;          ///< true = every label is LABEL_i, the name that transformers gives class i
  std::string fingerprint;           ///< changes with the file; a checkpoint's data position needs the same
  std::vector<std::string> skipped_records{};  ///< notices about skipped lines, for people

  /// Numbers the classes by their index in `order`. LABEL_i counts as a name here. If labels are numbers, the function
  /// changes nothing. Errors ("data"): a name is not in `order`.
  void number_as(const std::vector<std::string>& order);
  /// Splits the texts into a training and a held-out part. A text is held out with probability `held_out`, drawn from
  /// its number alone.
  std::pair<LabelledTexts, LabelledTexts> split(double held_out) const;
};

/// Options for reading JSON lines.
struct LabelledOptions {
  std::vector<std::string> text_columns = {"text"};  ///< columns whose texts are joined
  std::string label_column = "label";
  int64_t max_line_bytes = 16 << 20;   ///< maximum bytes of a line; a longer one is a fault
  OnError on_error = OnError::Refuse;  ///< Skip = malformed lines and the rest of a damaged file are skipped
};

/// Reads a file with one text per line. JSON lines (also packed) and Parquet files have objects {"text": "...",
/// "label": 1}. Lines of any other file, which may be packed too, are `label<tab>text`. Empty lines are skipped. Labels
/// are all numbers from 0, or all names, which are numbered in alphabetical order. If all labels are LABEL_i, these are
/// the classes i, without names.
/// Errors ("data"): there is no such file, it has more than 1 GiB unpacked or no text, or a line is malformed (with its
/// number). A label that is not UTF-8 is malformed, because config.toml and config.json store the names. Even with
/// OnError::Skip, two kinds of labels are errors: a name among numbers, such as a header, and a number that is no
/// class.
LabelledTexts read_labelled_texts(const std::string& path, const LabelledOptions& options = {});

/// Samples of labelled texts. Sample i has the tokenizer's begin token, the first tokens of text i and the end token.
/// More end tokens pad it up to `sequence`. A tokenizer without a begin token gives its end token instead. Labels are
/// [B, 1]. The padding is a document of its own, number 1, so no token of the text attends to it.
/// Errors ("data"): there are no texts; the sequence is below 3; the tokenizer has no end token.
class LabelledSamples : public Samples {
 public:
  LabelledSamples(const LabelledTexts& texts, const text::Tokenizer& tokenizer, int64_t sequence);
  int64_t count() const override { return static_cast<int64_t>(labels_.size()); }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// Returns the fingerprints of the file and of its tokens, the names of the classes, and the sizes.
  nlohmann::json traits() const override;

 private:
  int64_t sequence_, begin_id_, end_id_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<int64_t> labels_;
  std::vector<std::string> names_;
  std::string fingerprint_, tokens_fingerprint_;
};

}  // namespace colossal::data
