// Hidden states with two axes, such as the places and the frames of a clip, whose blocks attend over one axis at a
// time. Ranks may split either axis, and a block needs the axis over which it attends whole. A switch moves the split
// from one axis to the other (dynamic sequence parallelism, arXiv:2403.10266).
//
//   const nn::Axis places{.dim = 1, .size = 3600, .name = "places"};
//   const nn::Axis frames{.dim = 0, .size = rows * 120, .name = "frames"};  // those of all rows
//   at::Tensor y = axes->forward(x, places, frames);  // x [all frames, own places, H] -> [own frames, all places, H]
//   y = out->forward(over_places->forward(qkv->forward(y, step), step), step);
//   x = x + axes->forward(y, frames, places);
//
// Here `axes` is of Layers::axis_switch() and `over_places` of Layers::attention(), which also serve the modes of
// sequence parallelism that split the places of every block. Attention over frames, which are whole outside of the two
// switches, is axis_attention(). A model with such blocks says so: models::AttentionAxes.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"

namespace colossal::nn {

/// A dimension of a hidden state, and its size over all ranks.
struct Axis {
  int64_t dim, size;
  const char* name;  ///< what it counts, for messages: "frames"
};

/// Moves the split of a hidden state from one axis to another. The base class is the identity, for one process and for
/// layouts that never move the split.
///
/// Split:         of n ranks, rank r has the near_even_share() number r of the axis that is split, without padding.
///                Outside of a pair of switches this is what Layers::own_tokens() and Layers::field_part() give.
/// Communication: one all_to_all in forward and one in backward. For axes of sizes A and B, of which rank r has a_r and
///                b_r, and h elements at each point of them, the ranks together send (A B - sum of a_r b_r) h each way.
///                If n divides A or B, this is exactly (n-1)/n A B h.
/// Memory:        nothing is kept for backward.
class AxisSwitch {
 public:
  virtual ~AxisSwitch() = default;
  /// Takes x, split along `from` and whole along `to`, and returns the same state whole along `from` and split along
  /// `to`. Differentiable. All ranks must call it.
  /// Errors ("parallel"), before anything is sent: an axis with fewer elements than ranks; another x.
  virtual at::Tensor forward(const at::Tensor& x, const Axis& from, const Axis& to) const;
  /// Returns this rank's part of an axis of `size` to which forward() has moved the split.
  virtual Share share(int64_t size) const;
};

/// Returns attention over an axis of which this rank has all elements, although ranks may split the tokens of a batch:
/// the frames of each place, the keys of a caption, the places of each frame after a switch. Queries, keys and values
/// have any rows. A step must have no documents and no cache.
std::unique_ptr<Attention> axis_attention(const AttentionShape& shape, const AttentionOptions& options);

}  // namespace colossal::nn
