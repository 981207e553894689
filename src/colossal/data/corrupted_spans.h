// Plain text as samples of models with an encoder and a decoder: some spans of a text are hidden, and the answer says
// what they were (T5's span corruption: Raffel and others 2020, arXiv:1910.10683, section 3.1.4).
//
//   text    Thank you for inviting me to your party last week
//   source  Thank you <extra_id_0> me to your party <extra_id_1> week
//   answer  <extra_id_0> for inviting <extra_id_1> last
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/corpus.h"
#include "colossal/data/pair_samples.h"

namespace colossal::data {

/// How a text of a sample is divided.
struct SpanCounts {
  int64_t text;    ///< tokens of the corpus in a sample
  int64_t hidden;  ///< tokens of them that the answer has
  int64_t spans;   ///< number of spans in which these lie
};

struct SpanOptions {
  double density = 0.15;  ///< share of a text's tokens that is hidden
  double mean_span = 3;   ///< mean number of tokens in a span
};

/// Returns the counts of the longest text that fits: the source has its visible tokens, a sentinel for each span and
/// the end token; the answer its hidden tokens, the sentinels and the end token. Of n tokens round(density n) are
/// hidden, one at least, in round(hidden / mean_span) spans, one at least.
/// Errors ("data"): sizes that hold no text of two tokens; a density outside (0, 1); a mean_span below 1.
SpanCounts span_counts(const PairSizes& sizes, const SpanOptions& options);

/// Returns the ids of the first `count` sentinels: those that `tokenizer` spells <extra_id_0>, <extra_id_1> and so on.
/// Bytes have no sentinels: theirs are the ids after the vocabulary, as those of ByT5 are.
/// Errors ("data"): a tokenizer with fewer than `count`; those of a SentencePiece file are often in a tokenizer.json.
std::vector<int64_t> sentinel_ids(const text::Tokenizer& tokenizer, int64_t count);

/// Sample i is the tokens [i text, i text + text) of the corpus, end tokens among them. Visible and hidden spans
/// alternate; the first is visible, the last is hidden. Their lengths are drawn from all ways to divide the visible and
/// the hidden tokens, each with the same probability, as a function of (seed, epoch, sample). Rows are those of
/// PairSamples, without documents: a source may have a few tokens of padding, which other tokens see.
class CorruptedSpans : public Samples {
 public:
  /// `sentinels`: one for each span. Errors ("data"): those of span_counts(); a corpus without an end token, or shorter
  /// than one sample; fewer sentinels than spans.
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
