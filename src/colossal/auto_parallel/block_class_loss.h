// Cross entropy of rows whose classes are divided over ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/comm/group.h"

namespace colossal::automatic {

/// The classes that a rank has, and the ranks that have the others.
struct ClassBlock {
  int64_t first = 0;                 ///< number of the block's first class
  std::vector<comm::Group*> groups;  ///< axis by axis; they must outlive the backward pass
};

/// Returns -log softmax(logits)[target] of each row, at least in fp32, equal on the ranks of the groups.
///
/// `logits` [rows, classes of the block, ...]: a block of dimension 1. `targets` [rows, ...]: numbers of classes among
/// all, the same on the ranks of the groups. Rows whose target is `ignored` have the loss 0 and no gradient.
/// Gradients: that of the logits is complete for the block.
/// Communication: over each group an all_reduce of the rows' maxima, then over each one of two numbers a row. The
///                backward pass makes none.
/// Memory: a copy of the block, at least in fp32, in forward and in backward; the logits are kept in between.
/// Source: Megatron-LM's vocabulary-parallel cross entropy (Shoeybi et al. 2019, section 3).
at::Tensor class_losses_of_block(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored,
                                 const ClassBlock& block);

}  // namespace colossal::automatic
