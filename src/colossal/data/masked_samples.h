// Samples of a corpus with some tokens hidden, which a model is to fill in.
#pragma once
#include "colossal/data/text_samples.h"

namespace colossal::data {

struct Masking {
  double share = 0.15;              ///< of a sample's tokens, end tokens not counted
  double random = 0.1, kept = 0.1;  ///< of those: shown as a random token, and as they are; the others as mask_id
  int64_t mask_id = -1;             ///< what stands for a hidden token
  int64_t vocabulary = 0;           ///< random tokens are below it
};

/// Makes of row `row`, filled by fill_text_row(), one in which tokens are hidden as MaskedSamples says.
void hide_tokens(tensor::Batch& batch, int64_t row, uint64_t seed, int64_t end_id, const Masking& masking);

/// Sample i is that of TextSamples, of whose n tokens max(1, round(share * n)) have a label, the token itself, and the
/// others kIgnored (BERT, arXiv:1810.04805, section 3.1). An end token is never one of them; a sample of end tokens
/// alone has no labels. What is hidden is a function of (seed, epoch, sample) alone.
/// Errors: those of TextSamples; a mask_id below 0, or no vocabulary ("data").
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
