// Batch norm with statistics over the rows of all ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/comm/group.h"

namespace colossal::automatic {

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

}  // namespace colossal::automatic
