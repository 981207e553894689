// Layers on a block of a tensor that the axes of a mesh divide: batch norm with statistics over the rows of all ranks,
// dropout, and the cross entropy of rows whose classes are divided over ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/comm/group.h"

namespace colossal::auto_parallel {

/// The result of batch_norm_of_block(). Statistics have the channels of the block, at least in fp32.
struct NormedBlock {
  at::Tensor output;
  at::Tensor mean;      ///< mean over all rows
  at::Tensor variance;  ///< variance over all rows, with n - 1 in the denominator
};

/// Normalizes each channel (dimension 1) of a block of rows by the mean and the variance of the rows of all ranks.
///
/// `weight`, `bias`: those of the block's channels, or undefined. `shift`: a number for each channel, near its mean and
/// equal on the ranks of `groups`, or undefined for 0; squares are summed about it, so that large means do not cancel.
/// `groups`: the ranks that have other rows, axis by axis.
/// Gradients: that of the input is complete; those of weight and bias are the parts of this rank's rows.
/// Communication: an all_reduce of [2, channels] over each group, in forward and in backward, at least in fp32.
NormedBlock batch_norm_of_block(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& shift, double epsilon, const std::vector<comm::Group*>& groups);

/// Drops elements of a block as ops::dropout drops those of the whole tensor of sizes `shape`. The block begins at
/// `start`. An element is dropped by its index in the whole tensor, so all blocks together are dropped as in one
/// process. Cost: one call of ops::dropout for each run of rows that begin at equal distances; that is one call unless
/// two inner dimensions are divided.
at::Tensor dropout_of_block(const at::Tensor& block, double probability, uint64_t seed,
                            const std::vector<int64_t>& shape, const std::vector<int64_t>& start);

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

}  // namespace colossal::auto_parallel
