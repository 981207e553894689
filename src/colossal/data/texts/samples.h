// Samples of a corpus for next-token prediction: runs of tokens. The label of each token is the token after it.
#pragma once
#include "colossal/data/batches.h"
#include "colossal/data/texts/corpus.h"

namespace colossal::data {

/// The treatment of the documents within a row.
enum class Documents {
  /// Documents are independent: a token attends only to its own. Positions restart after an end token, whose label is
  /// kIgnored, so no token is predicted from another document.
  Separate,
  /// Documents form one stream. Positions do not restart, and the first token of the next document is predicted from
  /// the end token.
  Joined,
};

/// Fills row `row` of `batch`, which make_text_batch() made for the same `documents`, with a sample of S tokens. S is
/// the length of its rows. `ids` has S + 1 tokens: the sample and the token after it. `end_id` is the end token; it is
/// ignored with Documents::Joined.
void fill_text_row(const int64_t* ids, Documents documents, int64_t end_id, tensor::Batch& batch, int64_t row);

/// Returns a batch of `rows` rows of `sequence` tokens, all zeros: a text_batch(), which has the field "documents" only
/// with Documents::Separate.
tensor::Batch make_text_batch(int64_t rows, int64_t sequence, Documents documents);

/// Samples of S = `sequence` tokens. Sample i has the tokens [i S, i S + S) of the corpus; there are (size - 1) / S
/// samples. With Documents::Joined, fill() reads only the tokens of batch.wanted, and one token more after each run.
/// With Documents::Separate it reads whole rows, because the document of a token may begin anywhere before it.
/// Errors: the constructor throws Error("data", ...) if S < 1 or the corpus has fewer than S + 1 tokens. fill() throws
///         the errors of Corpus::read().
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
