// The parts of activations that a rank holds under a Split, and the order in which products gather the tokens of
// several ranks.
//
//   const at::Tensor own = part_of(layout, layout.outside, hidden);  // of whole [B, S, H]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/tensor/batch.h"

namespace colossal::parallel {

/// Returns the tokens of the batch of `step` that this rank holds under `split`, one of the layout's. Errors
/// ("parallel"): a step whose cut of the sequence is not for the ranks that split it.
nn::Tokens tokens_of(const Layout& layout, const Split& split, const nn::ForwardContext& step);

/// Returns the sizes of this rank's part of activations whose whole sizes are `sizes`, with these kinds of dimensions.
/// They are divided as part_of() divides a field of the batch of `step`; `tokens` is the length that its cut divides.
/// Errors ("parallel"): rows, features or tokens that do not divide.
std::vector<int64_t> local_sizes(const Layout& layout, const Split& split, const std::vector<int64_t>& sizes,
                                 const std::vector<tensor::Dim>& dims, int64_t tokens,
                                 const nn::ForwardContext& step = {});
/// Returns that part of `whole` [B, S, F]. Errors: sizes that do not divide.
at::Tensor part_of(const Layout& layout, const Split& split, const at::Tensor& whole,
                   const nn::ForwardContext& step = {});

/// Returns that part of a field of step.batch: its rows, tokens and features are divided under `split`, other
/// dimensions stay whole. Tokens are divided by the cut of the step if the field has as many as the batch. Another
/// number of them is divided into runs, one a rank, whose lengths differ by at most one. Errors ("parallel"): rows or
/// features that do not divide; "model": a step without a batch.
at::Tensor part_of(const Layout& layout, const Split& split, const tensor::Field& field,
                   const nn::ForwardContext& step);

/// Joins the tokens of all ranks: from `own` [B_local, S_local, ...], equal on the ranks of split.columns, to the whole
/// [B, S, ...] on every rank. Ranks may have unequal numbers of tokens; `own` has all of this rank's.
///
/// Gradient:      every rank uses the whole in the same way, so each takes its part of the gradient.
/// Communication: one all_reduce of [B_local, S, ...] over the ranks that split the sequence (2 (n-1)/n of its bytes),
///                one all_gather over those that split rows ((n-1)/n of the bytes of the whole). Backward: none.
at::Tensor joined(const Layout& layout, const Split& split, const at::Tensor& own, const nn::ForwardContext& step);

/// The tokens that the ranks along some axes hold together, concatenated rank by rank along dimension 0. A product
/// gathers rows in this order, and a reduce_scatter splits them in it.
class GatheredTokens {
 public:
  /// Either all of `axes` split tokens under layout.outside, or none does and all of those ranks hold the same tokens.
  GatheredTokens(std::shared_ptr<const Layout> layout, const std::vector<std::string>& axes);
  /// Returns true if the ranks hold different tokens.
  bool differ() const { return ranks_.size() > 1; }
  /// Converts [B, S] to [ranks * B_local, S_local], or to this rank's part if the ranks hold the same tokens. Errors
  /// ("parallel"): ranks that hold unequal numbers of tokens.
  at::Tensor of(const at::Tensor& whole, const nn::ForwardContext& step) const;

 private:
  std::shared_ptr<const Layout> layout_;
  std::vector<tensor::MeshCoordinates> ranks_;
};

/// The order of tokens that were gathered from ranks that split the sequence. Gathered tokens are concatenated rank by
/// rank: [ranks * B, S / ranks, ...]. Elementwise operations work in any order; for other operations this class
/// converts to the order of the sequence, and back.
/// Cost: a copy; none if the sequence is not gathered or if, in equal runs (no ForwardContext::cut), B is 1. Errors
/// ("parallel"): ranks that hold unequal numbers of tokens.
class SequenceOrder {
 public:
  /// Returns the order between outside and inside. Its ranks hold different tokens outside and the same ones inside.
  static SequenceOrder inside(const Layout& layout);
  /// Returns the order between `split`, layout.outside or layout.inside, and all tokens. Its ranks are all ranks along
  /// split.sequence.
  static SequenceOrder whole(const Layout& layout, const Split& split);
  int64_t ranks() const { return ranks_; }
  /// Throws the error that by_sequence() would throw on any rank for the cut of `step`, on all of them alike.
  void check(const nn::ForwardContext& step) const;
  /// [ranks * B, S / ranks, ...] -> [B, S, ...]
  at::Tensor by_sequence(const at::Tensor& by_rank, const nn::ForwardContext& step) const;
  /// [B, S, ...] -> [ranks * B, S / ranks, ...]
  at::Tensor by_rank(const at::Tensor& by_sequence, const nn::ForwardContext& step) const;

 private:
  /// A run of the sequence: the rank that has it, the index of its first token on that rank and among all tokens, and
  /// its size.
  struct Run {
    int64_t rank, own, first, size;
  };
  SequenceOrder(int64_t first, int64_t ranks, int64_t parts) : first_(first), ranks_(ranks), parts_(parts) {}
  /// Returns the runs in the order of the sequence.
  std::vector<Run> runs(const nn::SequenceCut& cut) const;

  int64_t first_, ranks_, parts_;  // shares [first, first + ranks) of a cut into `parts`
};

}  // namespace colossal::parallel
