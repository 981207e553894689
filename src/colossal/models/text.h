// What models of text have in common.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/shape.h"

namespace colossal::models {

/// Errors: ids or labels outside the vocabulary ("data"), more tokens than positions ("model").
void check_tokens(const ModelShape& shape, const at::Tensor& ids, const at::Tensor& labels);

/// Operations of a training step for a sample of `sequence` tokens: for each token 6 a matrix element, and for causal
/// attention 6 * layers * heads * head_dim * sequence (PaLM, arXiv:2204.02311, appendix B, halved for causality).
double causal_flops(const ModelShape& shape, int64_t matrix_elements, int64_t sequence);

}  // namespace colossal::models
