// Rows of a table by number: what embeddings are made of.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::nn {

/// table [rows, H], ids [...] int64 -> [..., H]. On the CPU the gradient of a leaf that has one already is added to the
/// rows that were read, and no others are touched. Each row of the gradient is added up in fp32 at least and rounded
/// once.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids);

}  // namespace colossal::nn
