// Samples of plain text for models with an encoder and a decoder. Some spans of a text are hidden, and the answer lists
// the hidden tokens (T5's span corruption: Raffel and others 2020, arXiv:1910.10683, section 3.1.4).
//
//   text    Thank you for inviting me to your party last week
//   source  Thank you <extra_id_0> me to your party <extra_id_1> week
//   answer  <extra_id_0> for inviting <extra_id_1> last
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/texts/corpus.h"
#include "colossal/data/texts/pair_samples.h"

namespace colossal::data {

/// The sizes into which the text of a sample is divided.
struct SpanCounts {
  int64_t text;    ///< number of corpus tokens in a sample
  int64_t hidden;  ///< number of these tokens that are hidden, and in the answer
  int64_t spans;   ///< number of hidden spans
};

/// Options of span corruption.
struct SpanOptions {
  double density = 0.15;  ///< fraction of a text's tokens that is hidden
  double mean_span = 3;   ///< mean number of tokens in a span
};

/// Returns the counts of the longest text that fits `sizes`. The source has the visible tokens, a sentinel for each
/// span and the end token. The answer has the hidden tokens, the sentinels and the end token. Of n tokens,
/// round(density n) are hidden, but at least one and at most n - 1. They form round(hidden / mean_span) spans, but at
/// least one and at most as many as there are visible tokens.
/// Errors ("data"): `sizes` hold no text of two tokens; the density is outside (0, 1); mean_span is below 1.
SpanCounts span_counts(const PairSizes& sizes, const SpanOptions& options);

/// Returns the ids of the first `count` sentinels, which `tokenizer` spells <extra_id_0>, <extra_id_1> and so on. The
/// byte tokenizer has no sentinels; as in ByT5, its sentinels are the ids after the vocabulary.
/// Errors ("data"): the tokenizer has fewer than `count` sentinels. A SentencePiece file often has none, while the
/// tokenizer.json of the same model has them.
std::vector<int64_t> sentinel_ids(const text::Tokenizer& tokenizer, int64_t count);

/// Samples with hidden spans. Sample i has the tokens [i text, i text + text) of the corpus, end tokens included.
/// Visible and hidden spans alternate; the first span is visible and the last one is hidden. The lengths are drawn from
/// all ways to divide the visible and the hidden tokens, with equal probability, as a function of (seed, epoch,
/// sample). Rows have the layout of PairSamples, but no documents, so other tokens attend to the few padding tokens of
/// a source.
class CorruptedSpans : public Samples {
 public:
  /// `sentinels` has at least one id for each span. Errors ("data"): the same as span_counts(); the corpus has no end
  /// token, or is shorter than one sample; there are fewer sentinels than spans.
  CorruptedSpans(Corpus corpus, const PairSizes& sizes, const SpanOptions& options, std::vector<int64_t> sentinels);
  int64_t count() const override { return corpus_.size() / counts_.text; }
  tensor::Batch make(int64_t rows) const override { return make_pair_batch(rows, sizes_, false); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;

 private:
  Corpus corpus_;
  PairSizes sizes_;
  SpanOptions options_;
  SpanCounts counts_;
  std::vector<int64_t> sentinels_;
};

}  // namespace colossal::data
