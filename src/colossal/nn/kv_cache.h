// Keys and values of the tokens seen so far, for decoding. One batch of sequences of equal length.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace colossal::nn {

/// Shapes:        one [B, capacity, kv_heads_local, D] pair a layer, allocated when the layer first appends: a stage of
///                a pipeline has some layers.
/// Thread safety: none.
class KvCache {
 public:
  KvCache(int64_t layers, int64_t batch, int64_t capacity, int64_t kv_heads_local, int64_t head_dim,
          at::TensorOptions options);

  /// Tokens held by every layer once a forward pass has ended.
  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  /// Puts k and v [B, S, N, D] behind the tokens held and returns views of all of them, [B, length() + S, N, D].
  /// Errors: more tokens than capacity.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& k, const at::Tensor& v);
  /// Called once after all layers appended `tokens`.
  void advance(int64_t tokens) { length_ += tokens; }

 private:
  std::vector<int64_t> shape_;
  at::TensorOptions options_;
  std::vector<at::Tensor> keys_, values_;
  int64_t length_ = 0, capacity_;
};

}  // namespace colossal::nn
