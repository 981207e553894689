// Outputs of attention that later passes of a drawing reuse (pyramid attention broadcast, arXiv:2408.12588).
//
//   nn::AttentionReuse reuse;                               // one for a drawing, on each rank
//   reuse.begin_pass({.time = nn::AttentionUse::Kept});
//   step.parts.set(nn::ReusedAttention{&reuse});            // then the caller runs the model
//   reuse.begin_pass({.time = nn::AttentionUse::Reused});   // the next pass does not compute temporal attention
//
//   y = nn::reusable(step, nn::AttentionKind::Time, this, [&] { return attended(x, step); });   // in a layer
//
// An output is what a branch adds to the hidden state, before its gate. So a pass that reuses it leaves out the norm,
// the projections and what ranks send for them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "colossal/nn/forward_context.h"

namespace colossal::nn {

/// A kind of attention: to the places of a frame, to the frames of a place, or to the caption.
enum class AttentionKind : uint8_t { Space, Time, Caption };

/// The use of the outputs of one kind of attention in a pass.
enum class AttentionUse : uint8_t {
  Computed,  ///< computes them, and frees those of an earlier pass
  Kept,      ///< computes them, and keeps them for later passes
  Reused     ///< takes those that an earlier pass kept
};

/// The use of each kind in one pass.
struct AttentionUses {
  AttentionUse space = AttentionUse::Computed, time = AttentionUse::Computed, caption = AttentionUse::Computed;
  AttentionUse of(AttentionKind kind) const;
};

/// The outputs that the passes of one drawing keep. All ranks must begin their passes alike, because a layer that
/// reuses its output sends nothing.
/// Memory: the output of each layer of a kept kind, of the size of a rank's hidden state.
/// Thread safety: one pass at a time.
class AttentionReuse {
 public:
  /// Begins a pass. It reads the same rows as the passes before it.
  void begin_pass(const AttentionUses& uses) { uses_ = uses; }
  /// Returns the output of a layer in this pass. `layer` identifies it among those of its kind; its address must stay.
  /// Errors ("model"): a reused output that no pass has kept.
  at::Tensor output(AttentionKind kind, const void* layer, const std::function<at::Tensor()>& compute);
  /// Returns how many outputs of a kind were computed.
  int64_t computed(AttentionKind kind) const;

 private:
  AttentionUses uses_;
  std::map<std::pair<AttentionKind, const void*>, at::Tensor> kept_;
  std::map<AttentionKind, int64_t> computed_;
};

/// Part of a ForwardContext: the outputs that layers may reuse. Only for passes without gradients.
struct ReusedAttention {
  AttentionReuse* outputs;  ///< null = every layer computes
};

/// Returns the output of a layer: what `compute` returns or, if the step says so, what it returned in an earlier pass.
/// Errors: as AttentionReuse::output().
at::Tensor reusable(const ForwardContext& step, AttentionKind kind, const void* layer,
                    const std::function<at::Tensor()>& compute);

}  // namespace colossal::nn
