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

/// Fills row `row` of `batch` with a sample of S tokens, of which ids[0, S] are the tokens and what follows the last.
void fill_text_row(const int64_t* ids, Documents documents, int64_t end_id, Batch& batch, int64_t row);

/// An empty batch of that many rows of text.
Batch make_text_batch(int64_t rows, int64_t sequence);

/// Sample i is the tokens [i S, i S + S) of the corpus, n = (size - 1) / S samples in all. Document numbers are all 0
/// with Documents::Joined: of a batch of which some tokens are wanted these alone are then read, each run with the
/// token behind it. Else a document of theirs may begin anywhere before, and whole rows are read.
/// Errors: the constructor throws Error("data", ...) when the corpus is shorter than one sequence + 1; fill() what
///         reading it throws.
class TextSamples : public Samples {
 public:
  TextSamples(Corpus corpus, int64_t sequence, Documents documents = Documents::Separate);
  int64_t count() const override { return (corpus_.size() - 1) / sequence_; }
  Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;

 private:
  Corpus corpus_;
  int64_t sequence_;
  Documents documents_;
};

}  // namespace colossal::data
