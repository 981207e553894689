// What a rank holds of activations under a Split, and the order in which products gather the tokens of several ranks.
//
//   const at::Tensor own = part_of(layout, layout.outside, hidden);  // of whole [B, S, H]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/nn/tokens.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// The tokens that this rank holds under `split`.
nn::Tokens tokens_of(const Layout& layout, const Split& split);

/// The sizes of this rank's part of activations [B, S, F] under `split`.
std::vector<int64_t> local_sizes(const Layout& layout, const Split& split, int64_t batch, int64_t sequence,
                                 int64_t features);
/// That part of `whole` [B, S, F]. Errors: sizes that do not divide.
at::Tensor part_of(const Layout& layout, const Split& split, const at::Tensor& whole);

/// What the ranks along some axes hold together, one rank's tokens behind another's along dimension 0: the order in
/// which a product gathers rows and a reduce_scatter deals them out.
class GatheredTokens {
 public:
  /// All of `axes` cut tokens under `split`, or none does, and each of those ranks holds what this one does.
  GatheredTokens(const Layout& layout, const Split& split, const std::vector<std::string>& axes);
  /// Whether they hold different tokens.
  bool differ() const { return ranks_.size() > 1; }
  /// [B, S] -> [ranks * B_local, S_local], or this rank's part where they hold the same.
  at::Tensor of(const at::Tensor& whole) const;

 private:
  std::vector<nn::Tokens> ranks_;
};

/// A layout whose ranks split the sequence outside and hold all of it inside gathers tokens rank by rank: behind an
/// expand a tensor [ranks * B, S / ranks, ...], of which what is elementwise need not care. This puts it in the order
/// of the sequence for whatever does care, and back. Cost: a copy, none where the sequence is not gathered or B is 1.
class SequenceOrder {
 public:
  explicit SequenceOrder(const Layout& layout);
  int64_t ranks() const { return ranks_; }
  /// [ranks * B, S / ranks, ...] -> [B, S, ...]
  at::Tensor by_sequence(const at::Tensor& by_rank) const;
  /// [B, S, ...] -> [ranks * B, S / ranks, ...]
  at::Tensor by_rank(const at::Tensor& by_sequence) const;

 private:
  int64_t ranks_;
};

}  // namespace colossal::parallel
