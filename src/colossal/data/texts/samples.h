// Samples of a corpus. For next-token prediction they are runs of tokens, and the label of each token is the token
// after it. For masked language modelling some tokens are hidden, which a model learns to predict.
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

/// Returns the numbers of a row of a field [B, N] of `batch`, int64 on the host.
int64_t* row_of(const tensor::Batch& batch, const char* field, int64_t row);

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

/// Options of masking.
struct Masking {
  double share = 0.15;              ///< fraction of a sample's tokens that have a label; end tokens do not count
  double random = 0.1, kept = 0.1;  ///< fractions of these that a random token replaces, and that are not replaced
  int64_t mask_id = -1;             ///< id that replaces the others; must be set (at least 0)
  int64_t vocabulary = 0;           ///< random tokens are drawn from the ids below it; must be set (above 0)
  int64_t begin_id = -1;            ///< id of a begin token, which has no label and does not count; -1 = none
};

/// Hides tokens of row `row`, which fill_text_row() filled, and sets its labels, as MaskedSamples describes.
void hide_tokens(tensor::Batch& batch, int64_t row, uint64_t seed, int64_t end_id, const Masking& masking);

/// Samples for masked language modelling. Sample i is sample i of TextSamples. Of its n tokens, max(1, round(share *
/// n)) have the token itself as label and the others kIgnored (BERT, arXiv:1810.04805, section 3.1). End tokens have no
/// label and do not count in n; a sample of end tokens only has no labels. The choice is a pure function of (seed,
/// epoch, sample).
/// Errors ("data"): the same as TextSamples; a mask_id below 0; no vocabulary.
class MaskedSamples : public Samples {
 public:
  MaskedSamples(Corpus corpus, int64_t sequence, Documents documents, const Masking& masking);
  int64_t count() const override { return texts_.count(); }
  tensor::Batch make(int64_t rows) const override { return texts_.make(rows); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  nlohmann::json traits() const override;

 private:
  TextSamples texts_;
  int64_t end_id_;
  Masking masking_;
};

}  // namespace colossal::data
