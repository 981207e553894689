// The features that a rank has, for layers that are written once for every layout.
//
//   const std::shared_ptr<nn::Features> features = layers.features(64, nn::Place::Outside);
//   const at::Tensor mean = features->sum(x.sum(-1, true)) / 64;           // each token's 64 features, on every rank
//   const at::Tensor of_groups = features->sum_of_groups(x, 4) / 16;       // each feature's group of 16
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/nn/tokens.h"
#include "colossal/ops/rank_reduction.h"

namespace colossal::nn {

/// Where a tensor stands: the layout splits its features differently in each place.
enum class Place : uint8_t {
  Outside,  ///< between blocks, as hidden states
  Inside,   ///< between an Expand and its Contract
};

/// This rank's features of tensors [..., size]. The base class is that of one process, which has all of them.
class Features {
 public:
  explicit Features(int64_t size) : Features(size, {0, size}, size) {}
  virtual ~Features() = default;
  /// Returns the number of features over all ranks.
  int64_t size() const { return size_; }
  /// Returns the features that this rank has; with padding it has fewer than room().
  Range here() const { return here_; }
  /// Returns the number of features of this rank's tensors. Those after here() are padding.
  int64_t room() const { return room_; }
  /// Returns true if other ranks have other features of the same tokens.
  bool is_split() const { return here_.size < size_; }
  /// Returns the sum of `partial` over the ranks that have other features of the same tokens. Each of them passes what
  /// it computed from its own features without padding, and uses the result in its own way.
  /// Communication: one all_reduce of `partial` in forward and one in backward, if the features are split.
  virtual at::Tensor sum(const at::Tensor& partial) const { return partial; }
  /// Returns a tensor like x [..., room] in which each feature is the sum of its group. The features are divided into
  /// `groups` equal groups of neighbours; padding becomes 0.
  /// Communication: none if no rank cuts a group; else sum() of [..., groups].
  /// Errors ("model"): groups that do not divide the features; another last dimension.
  at::Tensor sum_of_groups(const at::Tensor& x, int64_t groups) const;
  /// Returns sum() for operators that do not know collectives; without gradients.
  virtual ops::RankReduction& reduction() const;

 protected:
  Features(int64_t size, Range here, int64_t room) : size_(size), here_(here), room_(room) {}

 private:
  int64_t size_;
  Range here_;
  int64_t room_;
};

}  // namespace colossal::nn
