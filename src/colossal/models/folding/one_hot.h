// Indices as vectors, and pairs of residues by rows, for embeddings of folding models.
//
//   x = x + linear->forward(one_hot(types, 22, x.options()));                           // types [B, N] -> [B, N, 22]
//   for_rows(ranks, n, n * 128, [&](int64_t first, int64_t count) { ... });                    // some rows i at a time
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "colossal/nn/axial_ranks.h"

namespace colossal::models {

/// Returns vectors [..., size] with a 1 at each index; zeros for an index outside of [0, size). Runs on meta.
at::Tensor one_hot(const at::Tensor& indices, int64_t size, at::ScalarType dtype);

/// Calls body(first, count) for runs of this rank's rows of a pair representation of `residues` rows, with `of_row`
/// elements a row (nn::AxialRanks::for_runs()). With gradients it is one run of all rows; without, runs are so short
/// that what the body makes for a row stays small beside the whole.
void for_rows(const nn::AxialRanks& ranks, int64_t residues, int64_t of_row,
              const std::function<void(int64_t first, int64_t count)>& body);

}  // namespace colossal::models
