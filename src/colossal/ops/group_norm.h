// GroupNorm (Wu and He 2018, arXiv:1803.08494) of pictures in channels-last layout.
//
//   const at::Tensor y = ops::group_norm(x, weight, bias, {.groups = 32, .epsilon = 1e-6});   // x [B, S, C]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/rank_reduction.h"

namespace colossal::ops {

/// The groups of a norm: each has as many neighbouring channels.
struct NormGroups {
  int64_t groups = 1;
  double epsilon = 1e-5;
};

/// Computes y = (x - mean) / sqrt(var + epsilon) * weight + bias, where mean and the biased variance are those of the
/// pixels and channels of a group in a row.
///
/// Shapes:   x [B, S, C] with S pixels, weight and bias [C] -> [B, S, C].
/// Numbers:  statistics in fp32 at least for bf16, fp16 and fp32, in fp64 for fp64. Sums of short runs of pixels are
///           joined in fp64, so large pictures and large means lose no digits. Results do not depend on the number of
///           threads. Saved for backward: x and two statistics per row and group.
/// Gradient: of x, weight and bias.
/// Devices:  CPUs in fp64, fp32 and bf16 have kernels of ours, which read x twice; accelerators LibTorch's kernels, in
///           fp32 at least and with copies of x and y in their layout; others ATen operators.
/// Errors ("norm"): groups that do not divide the channels; a weight or bias of another size.
at::Tensor group_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const NormGroups& groups);

/// Computes the same where each rank has some of the `pixels` pixels of each row, or none. Forward only: the result has
/// no gradient.
/// Reductions: the sums of the groups, then the sums of the centred squares, [B, groups] each in fp64.
at::Tensor split_group_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const NormGroups& groups, int64_t pixels, RankReduction& reduction);

/// The same norm of pictures whose pixels come in bands, one after another, in two passes: first add() each band, then
/// forward() each. Forward only.
class BandedGroupNorm {
 public:
  BandedGroupNorm(const at::Tensor& weight, const at::Tensor& bias, const NormGroups& groups);
  /// Adds the pixels of a band [B, S, C] to the statistics. Bands are joined in fp64 (Chan, Golub and LeVeque 1979).
  void add(const at::Tensor& x);
  /// Makes the statistics those of all `pixels` pixels of a row, of which each rank has added some, at least one.
  /// Reductions: those of split_group_norm().
  void join(int64_t pixels, RankReduction& reduction);
  /// Returns the normed pixels of a band. Errors ("norm"): no band was added.
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor weight_, bias_;
  NormGroups groups_;
  at::Tensor sums_, squares_;  // [B, groups] in fp64: of elements, and of squared distances from the mean
  double count_ = 0;           // elements of a group
};

/// Reference: the norm from ATen operators with ATen's autograd, in the dtype of the statistics.
at::Tensor group_norm_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                const NormGroups& groups);

}  // namespace colossal::ops
