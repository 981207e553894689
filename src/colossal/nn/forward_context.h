// What a forward pass gives its layers in addition to the hidden state.
//
// Fields: the fields of a micro-batch (ForwardContext::batch) are whole and the same on all ranks of the model. The
// exception is a rank that is given only some of their tokens (SequenceCut::given). Embeddings and heads select this
// rank's part of a field; other layers use Layers::field_part().
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "colossal/base/segments.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/tokens.h"
#include "colossal/tensor/batch.h"

namespace colossal::nn {

class BatchDocuments;  // nn/batch_documents.h
class KeptChoices;     // nn/expert_choice.h
class InputStore;      // nn/input_store.h

/// Inputs of a forward pass in addition to the hidden state. step_of() (nn/batch_step.h) makes a ForwardContext from a
/// micro-batch.
struct ForwardContext {
  at::Tensor positions;  ///< [B, S] int64, for the whole batch like `documents`; each layer selects its tokens
  /// [B, S] int64, the document of each token. A token attends only inside its own document; undefined = one document
  /// per row. Must not be set together with a cache, because it does not describe the cached tokens (Error "model");
  /// set `sequences` in that case
  at::Tensor documents;
  /// The micro-batch. Embedding, blocks and head of every pipeline stage may read its fields, so a constant input is
  /// never sent from stage to stage. `positions` and `documents` are two of its fields. Null only when single layers
  /// are called
  std::shared_ptr<const tensor::Batch> batch{};
  /// Cache of what layers compute from `documents`, shared by all layers of the pass; null = each layer computes it
  std::shared_ptr<BatchDocuments> known_documents{};
  /// How rows are split into sequences that do not attend to each other, e.g. prompts of unequal lengths in one row
  Sequences sequences{};
  /// Keys and values of earlier tokens, for decoding: attention reads them too and appends those of this step. Null =
  /// no cache
  AttentionCache* cache = nullptr;
  bool training = false;  ///< true = dropout is on
  /// One seed per step, the same on all ranks; micro-batches and replicas differ in first_row
  uint64_t dropout_seed = 0;
  Recompute recompute = Recompute::None;  ///< activations that a training pass recomputes in backward
  /// Blocks of this rank that a training pass recomputes together, with Recompute::None; null = none. Numbers are those
  /// of the model's blocks, and a segment lies within one stage
  std::shared_ptr<const Segments> segments{};
  /// Storage for the inputs of recomputed blocks (of segments: those on the host) between forward and backward; null =
  /// they stay where they are
  std::shared_ptr<InputStore> inputs{};
  /// Collects the values that layers report; null = nothing is reported and no loss term is attached, as in evaluation
  std::shared_ptr<ReportAccumulator> reports{};
  /// Choices of the mixtures of a block, which its second pass uses again; null = the block is not recomputed
  std::shared_ptr<KeptChoices> choices{};
  bool is_recomputed = false;  ///< true = later pass of a recomputed block, which reports nothing
  /// Index in the global batch of this batch's first row; its rows are consecutive (tensor::ReplicaRows). Dropout masks
  /// depend on it, because they are drawn by logical index
  int64_t first_row = 0;
  /// True if the hidden states have one token per row, the class token, whichever rank holds it. Dropout then numbers
  /// rows only
  bool is_class_token = false;
  /// How this batch's sequence is split over ranks, and which of its runs this rank was given. Null = equal runs, one
  /// per rank, and each rank is given the whole sequence. distributed::DistributedModel sets it from the layout of the
  /// layers (parallel::Layout::with_cut). It is read only by layers
  std::shared_ptr<const SequenceCut> cut{};
  /// Number of tokens at the start of each row that the encoder reads, for a model with an encoder. 0 = the encoder
  /// read them in an earlier step, and `cache` holds what the decoder needs of them. Empty = the number that the
  /// model's shape says (models::Task::source_of)
  std::optional<int64_t> source_tokens{};

  /// Reports a value of this micro-batch, without a gradient. It is joined with the values of other micro-batches and
  /// ranks as declared.
  /// Errors ("model"): a report that was not declared; another number of elements than declared.
  void report(const Report& what, const at::Tensor& value) const;
  /// Reports the scalar `loss` and returns y, a hidden state, which must not be changed in place afterwards. Backward
  /// through y also goes through `loss`, with the gradient of (weight of the term) x (joined value), under every
  /// layout. The loss of the model must depend on y.
  /// Errors ("model"): a report that was not declared by add_loss(); a loss that is not one fp32 or fp64 number.
  at::Tensor attach_loss(const Report& term, const at::Tensor& loss, const at::Tensor& y) const;
};

}  // namespace colossal::nn
