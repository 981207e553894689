// Lookup of the rows of a table by index, the operation of embeddings.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::nn {

/// Returns rows of a table: table [rows, H], ids [...] int64 -> [..., H]. On the CPU, if a leaf already has a gradient,
/// backward adds only to the rows that were read. Each row of the gradient is summed in fp32 or wider and rounded once.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids);

}  // namespace colossal::nn
