// Combines the hidden states of a text into one vector.
//
//   infer::TextPool pool(infer::Pooling::Mean, /*normalizes=*/true);
//   for (const at::Tensor& chunk : chunks) pool.add(chunk);   // [n, H], in the order of the text
//   const std::vector<float> vector = pool.vector();          // H values
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace colossal::infer {

/// How the hidden states of a text's tokens, including special tokens, become one vector.
enum class Pooling {
  Cls,     ///< hidden state of the first token
  Mean,    ///< mean of all hidden states
  Max,     ///< maximum of each feature over all tokens
  Last,    ///< hidden state of the last token
  Pooler,  ///< BERT's pooler: a dense layer and tanh on the first token
};

/// Returns the pooling with this name. Errors ("embed"): a name that is not in pooling_names().
Pooling pooling_of(const std::string& name);
const std::vector<std::string>& pooling_names();

/// Returns one vector for each text: [texts, H] in at least fp32. `hidden` [1, T, H] has the hidden states of all texts
/// one after another, with these `lengths`. `pooling` must not be Pooling::Pooler, which has weights.
at::Tensor pooled(const at::Tensor& hidden, const std::vector<int64_t>& lengths, Pooling pooling);

/// Returns vectors [texts, H] of length 1. Divides vectors shorter than 1e-12 by 1e-12, like torch's normalize.
at::Tensor normalized(const at::Tensor& vectors);

/// The vector of a text whose hidden states arrive in chunks. It keeps one vector, not the states. A mean is summed in
/// fp64, so it hardly depends on the chunks.
class TextPool {
 public:
  /// `pooling` must not be Pooling::Pooler.
  TextPool(Pooling pooling, bool normalizes) : pooling_(pooling), normalizes_(normalizes) {}
  /// Adds the hidden states [n, H] of the next n tokens; n may be 0.
  void add(const at::Tensor& states);
  /// Returns the vector of all tokens so far, of which there must be at least one.
  std::vector<float> vector() const;

 private:
  Pooling pooling_;
  bool normalizes_;
  int64_t tokens_ = 0;
  at::Tensor value_{};  // [H]: a sum for Mean, else the vector so far
};

}  // namespace colossal::infer
