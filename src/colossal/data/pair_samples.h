// Pairs of texts, a source and the answer to it, as samples of models with an encoder and a decoder: translations,
// summaries, questions with answers.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/record_source.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

struct TextPairs {
  std::vector<std::string> sources, targets;
  std::string fingerprint;  ///< changes with the file: what a data position in a checkpoint refers to

  /// Training and held-out part: each pair is held out with that probability, by its number alone.
  std::pair<TextPairs, TextPairs> split(double held_out) const;
};

/// How JSON lines are read.
struct PairOptions {
  std::vector<std::string> text_columns = {"text"};  ///< whose texts are one, the source
  std::string target_column = "target";
  int64_t longest_line = 16 << 20;  ///< bytes; a longer one is a fault
  Faults faults = Faults::Refuse;   ///< Skip: lines that are none of this are left out
};

/// Reads a file of pairs: JSON lines or Parquet (is_record_file()) with columns `text` and `target`, or any other text
/// file, which may be packed too, with `text<tab>answer` in each line. Empty lines are skipped.
/// Errors ("data"): no such file, one of more than 1 GiB unpacked, no pair in it, a line that is none of this (with its
/// number).
TextPairs read_text_pairs(const std::string& path, const PairOptions& options = {});

/// Tokens of a row: [source | target], each of which has room for an end token.
struct PairSizes {
  int64_t source, target;
  int64_t start_id;  ///< in front of the answer that the decoder reads, and what fills up
};

/// A batch of rows of pairs, all zeros: text_batch() of labels [B, target]. With `hides_padding` it has documents, so
/// that no token attends to the padding of a source.
tensor::Batch make_pair_batch(int64_t rows, const PairSizes& sizes, bool hides_padding);

/// Fills row `row` of `batch` with a source and an answer, which have their end tokens and fit `sizes`. The row is the
/// source, padded to sizes.source, then the start token and the answer without its last token, padded to sizes.target.
/// Labels are [B, target]: the answer, then kIgnored. If the batch has documents, the padding of a source is one of its
/// own, number 1, to which no token attends. The padding of an answer comes after all tokens that count.
void fill_pair_row(const std::vector<int32_t>& source, const std::vector<int32_t>& answer, const PairSizes& sizes,
                   tensor::Batch& batch, int64_t row);

/// Sample i is pair i: the first tokens of the source and of the answer that fit, each with the end token, as
/// fill_pair_row() lays them out.
/// Errors ("data"): no pairs, sizes below 2, a tokenizer without an end token.
class PairSamples : public Samples {
 public:
  PairSamples(const TextPairs& texts, const text::Tokenizer& tokenizer, const PairSizes& sizes);
  int64_t count() const override { return static_cast<int64_t>(pairs_.size()); }
  tensor::Batch make(int64_t rows) const override { return make_pair_batch(rows, sizes_, true); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// The file and its tokens as the tokenizer made them.
  nlohmann::json traits() const override;

 private:
  struct Pair {
    std::vector<int32_t> source, target;  // with the end token
  };
  PairSizes sizes_;
  std::vector<Pair> pairs_;
  std::string fingerprint_, tokens_fingerprint_;
};

}  // namespace colossal::data
