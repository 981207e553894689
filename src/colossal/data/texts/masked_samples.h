// Samples of a corpus in which some tokens are hidden. A model learns to predict the hidden tokens.
#pragma once
#include "colossal/data/texts/samples.h"

namespace colossal::data {

/// Options of masking.
struct Masking {
  double share = 0.15;              ///< fraction of a sample's tokens that have a label; end tokens do not count
  double random = 0.1, kept = 0.1;  ///< fractions of these that a random token replaces, and that are not replaced
  int64_t mask_id = -1;             ///< id that replaces the others; must be set (at least 0)
  int64_t vocabulary = 0;           ///< random tokens are drawn from the ids below it; must be set (above 0)
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
