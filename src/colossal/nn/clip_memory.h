// What the layers of clips remember between chunks of frames, so that chunk by chunk they compute what they compute of
// the whole clip.
//
//   nn::ClipMemory memory;
//   do {                                                       // a pass for each norm, and the last one is the result
//     memory.begin_pass();
//     for (const at::Tensor& chunk : chunks) {
//       memory.begin_chunk();
//       y = layer->forward(chunk, size, {.parts = {nn::ClipPass{&memory}}});
//     }
//   } while (memory.end_pass());
//
// A causal convolution remembers the last frames that it read. A norm reads all frames before it changes one: the first
// norm of a pass that lacks its statistics adds each chunk to them, and layers after it are idle.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "colossal/ops/group_norm.h"

namespace colossal::nn {

/// Memory: a few frames of each convolution, the keys and values of each attention, and statistics.
/// Thread safety: none.
class ClipMemory {
 public:
  /// `band_elements`: of the frames that a convolution reads at once. It passes larger ones by bands of rows, and a
  /// band has at least one row of the result.
  explicit ClipMemory(int64_t band_elements = int64_t{1} << 24) : band_elements_(band_elements) {}
  int64_t band_elements() const { return band_elements_; }
  /// Begins a pass from the first frame of the clip. Statistics stay.
  void begin_pass() { carried_.clear(); }
  void begin_chunk() { is_idle_ = false; }
  /// Ends a pass. Returns true if it made the statistics of a norm: results behind that norm are not defined.
  bool end_pass();

  /// Returns true if results of this chunk are not read any more.
  bool is_idle() const { return is_idle_; }
  /// Returns what the layer remembers, undefined at the beginning of a clip.
  at::Tensor carried(const void* layer) const;
  void carry(const void* layer, at::Tensor x) { carried_[layer] = std::move(x); }
  /// Returns the normed x [B, S, C], or adds it to the statistics of the layer. `make`: makes the norm.
  at::Tensor normed(const void* layer, const at::Tensor& x, const std::function<ops::BandedGroupNorm()>& make);

 private:
  struct Statistics {
    ops::BandedGroupNorm norm;
    bool are_complete = false;
  };
  std::map<const void*, at::Tensor> carried_;
  std::map<const void*, Statistics> statistics_;
  Statistics* pending_ = nullptr;  // those that this pass makes
  bool is_idle_ = false;
  int64_t band_elements_;
};

/// Part of a ForwardContext: the pass reads a chunk of a clip. Without it a pass reads whole clips.
struct ClipPass {
  ClipMemory* memory;
};

}  // namespace colossal::nn
