// A vector for each text, from the hidden states of a model.
//
//   infer::Embedder embedder(*saved.model, {.pooling = infer::Pooling::Mean, .normalize = true});
//   const at::Tensor vectors = embedder.embed({tokenizer->encode_whole("a text").ids});   // [1, H]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"

namespace colossal::infer {

/// How the hidden states of a text's tokens, special ones included, become one vector.
enum class Pooling {
  Cls,     ///< that of the first token
  Mean,    ///< their mean
  Max,     ///< the largest of each feature
  Last,    ///< that of the last token
  Pooler,  ///< BERT's own: the first token's through a dense layer and tanh
};

/// Errors ("embed"): a name that is none of pooling_names().
Pooling pooling_of(const std::string& name);
const std::vector<std::string>& pooling_names();

/// Of hidden states [1, T, H], texts of these lengths one behind the other: [texts, H] in at least fp32. Not of
/// Pooling::Pooler, which has weights.
at::Tensor pooled(const at::Tensor& hidden, const std::vector<int64_t>& lengths, Pooling pooling);

struct EmbedOptions {
  Pooling pooling = Pooling::Mean;
  bool normalize = false;  ///< to length 1; what is shorter than 1e-12 is divided by that (torch's normalize)
  /// Of texts that go through the model at once, one at least: what bounds the memory of activations
  int64_t tokens_at_once = 4096;
};

class Embedder {
 public:
  /// Takes `model`, loaded with run::Loading::headless, over: from here on it ends with the pooling instead of its
  /// head, whose weights nobody reads. Hidden states are those of the last block, behind the final norm where the model
  /// continues text (what transformers calls last_hidden_state).
  /// Errors ("embed"): a model that does not read text, or that reads a source and a target; Pooler of one without a
  ///                   pooler.
  Embedder(distributed::DistributedModel& model, const EmbedOptions& options);

  /// fp32 [texts, H], on the CPU, in the order of `texts` (ids, special tokens included). Texts are packed into one row
  /// without padding, and do not see one another.
  ///
  /// Communication: that of a forward pass a row, and of a pipeline the vectors; all ranks must call with equal texts.
  /// Errors ("embed"): a text without tokens or with more than the model's positions; ids outside the vocabulary;
  ///                   before any communication.
  at::Tensor embed(const std::vector<std::vector<int64_t>>& texts);

 private:
  void check(const std::vector<int64_t>& text) const;
  at::Tensor embed_row(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths);
  distributed::DistributedModel& model_;
  EmbedOptions options_;
};

}  // namespace colossal::infer
