// Computes an embedding vector for each text from the hidden states of a model.
//
//   infer::Embedder embedder(*saved.model, {.pooling = infer::Pooling::Mean, .normalize = true});
//   const at::Tensor vectors = embedder.embed({tokenizer->encode_whole("a text").ids});   // [1, H]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/embeddings/pooling.h"

namespace colossal::infer {

/// Options of an Embedder.
struct EmbedOptions {
  Pooling pooling = Pooling::Mean;
  bool normalize = false;  ///< scales vectors to length 1 (normalized())
  /// Maximum number of tokens per forward pass, which bounds the memory of activations. A longer text runs alone.
  int64_t tokens_at_once = 4096;
};

/// Computes embeddings with a model, which it does not change: an infer::Engine may generate with the same model
/// between two calls. The thread that steps the engine must make the calls.
class Embedder {
 public:
  /// The head's weights are not read, so `model` may have been loaded with run::Loading::headless. `model` must outlive
  /// the embedder. Hidden states are those of the last layer, after the final norm if the model generates text
  /// (last_hidden_state in transformers).
  /// Errors ("embed"): a model that does not read text, reads a source and a target, or ends in scores;
  ///                   Pooling::Pooler for a model without a pooler; a layout that divides hidden states between ranks
  ///                   (parallel.sequence, tensor.sequence, modes of tensor parallelism other than 1d).
  Embedder(distributed::DistributedModel& model, const EmbedOptions& options);

  /// Returns the vectors, fp32 [texts, H] on the CPU, in the order of `texts` (token ids, including special tokens).
  /// Texts are packed into one row without padding, and attention does not cross texts.
  ///
  /// Communication: one forward pass per row; a pipeline also sends the vectors. All ranks must call it with equal
  /// texts.
  /// Errors ("embed"): errors of check() for any text, before any communication.
  at::Tensor embed(const std::vector<std::vector<int64_t>>& texts);
  /// Returns the vectors of one forward pass, for a caller that runs other work between passes: of the texts from
  /// `first` on, as many as have at most EmbedOptions::tokens_at_once tokens together, and at least one. The result is
  /// [count, H]; the next pass begins at `first` + count. Communication, errors: as embed(), for these texts.
  at::Tensor embed_row(const std::vector<std::vector<int64_t>>& texts, size_t first);
  /// Errors ("embed"): a text without tokens or with more tokens than the model's positions; ids outside the
  /// vocabulary. Thread safety: may be called from any thread.
  void check(const std::vector<int64_t>& text) const;
  const EmbedOptions& options() const { return options_; }

 private:
  at::Tensor run(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths);
  distributed::DistributedModel& model_;
  EmbedOptions options_;
};

}  // namespace colossal::infer
