// Samples of text pairs, a source and its answer, for models with an encoder and a decoder: translations, summaries,
// questions with answers.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// Text pairs in memory.
struct TextPairs {
  std::vector<std::string> sources, targets;
  std::string fingerprint;  ///< changes with the file; a checkpoint's data position needs the same

  /// Splits the pairs into a training and a held-out part. A pair is held out with probability `held_out`, drawn from
  /// its number alone.
  std::pair<TextPairs, TextPairs> split(double held_out) const;
};

/// Options for reading JSON lines.
struct PairOptions {
  std::vector<std::string> text_columns = {"text"};  ///< columns whose texts are joined to the source
  std::string target_column = "target";
  int64_t max_line_bytes = 16 << 20;   ///< maximum bytes of a line; a longer one is a fault
  OnError on_error = OnError::Refuse;  ///< Skip = malformed lines are skipped; damage of the file is an error even then
};

/// Reads a file of pairs. JSON lines and Parquet files (is_record_file()) have the columns of `options`. Lines of
/// any other text file, which may be packed too, are `text<tab>answer`. Empty lines are skipped.
/// Errors ("data"): there is no such file, it has more than 1 GiB unpacked or no pair, or a line is malformed (with its
/// number).
TextPairs read_text_pairs(const std::string& path, const PairOptions& options = {});

/// Token counts of a row, which is [source | target]. Each part has room for an end token.
struct PairSizes {
  int64_t source, target;
  int64_t start_id;  ///< id before the answer in the decoder's input, and id of the padding
};

/// Returns a batch of rows of pairs, all zeros: a text_batch() with labels [B, target]. If `hides_padding` is true, it
/// has documents, so no token attends to the padding of a source.
tensor::Batch make_pair_batch(int64_t rows, const PairSizes& sizes, bool hides_padding);

/// Fills row `row` of `batch` with a source and an answer, which have their end tokens and fit `sizes`. The row has the
/// source, padded to sizes.source, then the start token and the answer without its last token, padded to sizes.target.
/// Labels are [B, target]: the answer, then kIgnored. If the batch has documents, the padding of a source is a document
/// of its own, number 1, to which no token attends. The padding of an answer follows all tokens that count.
void fill_pair_row(const std::vector<int32_t>& source, const std::vector<int32_t>& answer, const PairSizes& sizes,
                   tensor::Batch& batch, int64_t row);

/// Samples of text pairs. Sample i has the first tokens of source i and of its answer that fit, each with the end
/// token, in the layout of fill_pair_row().
/// Errors ("data"): there are no pairs; a size is below 2; the tokenizer has no end token.
class PairSamples : public Samples {
 public:
  PairSamples(const TextPairs& texts, const text::Tokenizer& tokenizer, const PairSizes& sizes);
  int64_t count() const override { return static_cast<int64_t>(pairs_.size()); }
  tensor::Batch make(int64_t rows) const override { return make_pair_batch(rows, sizes_, true); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// Returns the fingerprints of the file and of its tokens, and the sizes.
  nlohmann::json traits() const override;

 private:
  struct Pair {
    std::vector<int32_t> source, target;  // token ids, each list with the end token
  };
  PairSizes sizes_;
  std::vector<Pair> pairs_;
  std::string fingerprint_, tokens_fingerprint_;
};

}  // namespace colossal::data
