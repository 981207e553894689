// Samples of a corpus: runs of tokens and what follows each of them.
#pragma once
#include "colossal/data/batches.h"
#include "colossal/data/corpus.h"

namespace colossal::data {

enum class Documents {
  Separate,  ///< positions restart after an end token, whose label is kIgnored: nothing is predicted across a border
  /// One stream: positions count through, the first token of the next document is predicted from the end token
  Joined,
};

/// Fills row `row` of `batch`, which make_text_batch() made for the same `documents`, with a sample of S tokens.
/// `ids` has S + 1 tokens: those of the sample and the one that follows.
void fill_text_row(const int64_t* ids, Documents documents, int64_t end_id, tensor::Batch& batch, int64_t row);

/// A batch of that many rows of text, all zeros: text_batch() with `documents` if they are separate.
tensor::Batch make_text_batch(int64_t rows, int64_t sequence, Documents documents);

/// Sample i is the tokens [i S, i S + S) of the corpus, n = (size - 1) / S samples in all. With Documents::Joined
/// fill() reads the wanted tokens of a batch alone, and after each run one token more. With Documents::Separate it
/// reads whole rows, because the document of a token may begin anywhere before it.
/// Errors: the constructor throws Error("data", ...) when the corpus is shorter than one sequence + 1; fill() what
///         reading it throws.
class TextSamples : public Samples {
 public:
  TextSamples(Corpus corpus, int64_t sequence, Documents documents = Documents::Separate);
  int64_t count() const override { return (corpus_.size() - 1) / sequence_; }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;

 private:
  Corpus corpus_;
  int64_t sequence_;
  Documents documents_;
};

}  // namespace colossal::data
