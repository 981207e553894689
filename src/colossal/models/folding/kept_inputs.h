// States that blocks overwrite without gradients.
//
//   copy_kept_inputs({&m, &z});                         // then, without gradients, m and z may be overwritten
//   add_update(m, row.forward(m, z, mask));             // m = m + ..., in place without gradients
//   add_triangle(z, triangle, dropout, mask, step);
#pragma once
#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/pair_layers.h"
#include "colossal/nn/shared_dropout.h"

namespace colossal::models {

/// Replaces the states that a block reads by copies if backward reads them again: the first pass of a recomputed block
/// runs without gradients, but one of its inputs has one. Does nothing with gradients, and in passes that have none.
void copy_kept_inputs(std::initializer_list<at::Tensor*> states);

/// Adds `update` to `x`, in place without gradients.
void add_update(at::Tensor& x, const at::Tensor& update);

/// Adds a triangle multiplication, with dropout, to z [B, N, N, c], of which ranks may have some rows: in place without
/// gradients, and within twice the memory of z if nothing is dropped. `mask` [B, N, N] may be undefined.
void add_triangle(at::Tensor& z, const nn::TriangleMultiplication& triangle, const nn::SharedDropout& dropout,
                  const at::Tensor& mask, const nn::ForwardContext& step);

}  // namespace colossal::models
