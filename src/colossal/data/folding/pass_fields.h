// The passes of samples that fold proteins. A folding model runs several times on a chain, and each pass reads other
// draws of its alignment, so some fields of a sample have a dimension P of passes after the rows: those of
// FeatureField::has_passes().
//
//   const int64_t passes = data::passes_of(batch);                           // 0 = the batch is of one pass
//   const tensor::Batch second = data::batch_of_pass(batch, 1);              // msa_feat [B, S, N, 49]
#pragma once
#include <cstdint>

#include "colossal/tensor/batch.h"

namespace colossal::data {

/// Returns the number of passes of a batch; 0 = its fields have no passes, as those that a model reads.
/// Errors ("data"): fields with other numbers of dimensions or of passes than the others.
int64_t passes_of(const tensor::Batch& batch);

/// Returns the batch that the model reads in pass `pass`, from 0: views. A pass beyond the last one of the batch is the
/// last one. A batch without passes stays as it is.
tensor::Batch batch_of_pass(const tensor::Batch& batch, int64_t pass);

}  // namespace colossal::data
