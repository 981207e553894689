// Dropout of pair and alignment representations, whose masks are shared along one dimension (Jumper et al. 2021,
// supplement, section 1.11.6).
//
//   const nn::SharedDropout dropout(make, "tri_mul_out.dropout", 0.25, nn::AttendedAxis::First);
//   z = z + dropout.forward(update, step, n);           // update [B, N, N, 128]: one mask [B, N, 128] for all rows i
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/axial_ranks.h"
#include "colossal/nn/gated_attention.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

/// Dropout of x [B, P, Q, H] with one mask for all elements of `shared`. While training, an element is dropped by the
/// step's seed, the layer's name and its logical index: row of the batch, index along the other axis, feature. Ranks
/// may cut either axis (nn/axial_ranks.h).
class SharedDropout {
 public:
  /// Errors ("model"): a probability outside of [0, 1).
  SharedDropout(Layers& make, const std::string& name, double probability, AttendedAxis shared);
  /// Returns true if forward() of such a step drops anything.
  bool drops(const ForwardContext& step) const;
  /// `whole`: number of elements of the other axis, of which x has all or those of this rank.
  at::Tensor forward(const at::Tensor& x, const ForwardContext& step, int64_t whole) const;

 private:
  std::shared_ptr<const AxialRanks> ranks_;
  OwnTokens tokens_;
  uint64_t site_;
  double probability_;
  int64_t dim_;
};

}  // namespace colossal::nn
