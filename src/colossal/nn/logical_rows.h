// The places of a rank's tokens in the whole batch, for layers whose random numbers follow from logical indices.
//
//   return nn::by_logical_rows(x, tokens(step), step.first_row, [&](const at::Tensor& run, const auto& rows) {
//     return ops::dropout(run, 0.1, seed, rows, here.first, features);
//   });
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "colossal/nn/tokens.h"
#include "colossal/ops/random.h"

namespace colossal::nn {

/// Computes a function of x [B_local, S_local, ...], the rank's `tokens`, in parts. `work` gets runs of neighbouring
/// tokens with their rows in the logical matrix of all tokens [B S, ...]; `first_row` is the index in the global batch
/// of the first row of this batch. Returns the results, joined along the tokens.
/// Errors ("parallel"): those of Share::ranges().
at::Tensor by_logical_rows(const at::Tensor& x, const Tokens& tokens, int64_t first_row,
                           const std::function<at::Tensor(const at::Tensor& run, const ops::LogicalRows& rows)>& work);

}  // namespace colossal::nn
