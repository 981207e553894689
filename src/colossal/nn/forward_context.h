// The ForwardContext: a forward pass gives it to each layer in addition to the hidden state.
//
// Fields: the fields of a micro-batch (ForwardContext::batch) are whole and the same on all ranks of the model. The
// exception is a rank that is given only some of their tokens (SequenceCut::given). Embeddings and heads select this
// rank's part of a field; other layers use Layers::field_part().
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "colossal/base/segments.h"
#include "colossal/base/typed_parts.h"
#include "colossal/nn/recompute.h"
#include "colossal/tensor/batch.h"

namespace colossal::nn {

class BatchDocuments;  // nn/batch_step.h
class InputStore;      // nn/input_store.h
struct Report;         // nn/reports.h
struct SequenceCut;    // nn/tokens.h

/// Inputs of a forward pass in addition to the hidden state. step_of() (nn/batch_step.h) makes a ForwardContext from a
/// micro-batch.
struct ForwardContext {
  at::Tensor positions;  ///< [B, S] int64, for the whole batch like `documents`; each layer selects its tokens
  /// [B, S] int64, the document of each token. A token attends only inside its own document; undefined = one document
  /// per row. Must not be set together with a cache (nn::Decoding), because it does not describe the cached tokens
  /// (Error "model"); set nn::Sequences in that case
  at::Tensor documents;
  /// The micro-batch. Embedding, blocks and head of every pipeline stage may read its fields, so a constant input is
  /// never sent from stage to stage. `positions` and `documents` are two of its fields. Null only when single layers
  /// are called
  std::shared_ptr<const tensor::Batch> batch{};
  /// Cache of what layers compute from `documents`, shared by all layers of the pass; null = each layer computes it
  std::shared_ptr<BatchDocuments> known_documents{};
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
  bool is_recomputed = false;  ///< true = later pass of a recomputed block, which reports nothing
  /// Index in the global batch of this batch's first row; its rows are consecutive (tensor::ReplicaRows). Dropout masks
  /// depend on it, because they are drawn by logical index
  int64_t first_row = 0;
  /// How this batch's sequence is split over ranks, and which of its runs this rank was given. Null = equal runs, one
  /// per rank, and each rank is given the whole sequence. distributed::DistributedModel sets it from the layout of the
  /// layers (parallel::Layout::with_cut). It is read only by layers
  std::shared_ptr<const SequenceCut> cut{};
  /// Values that only some kinds of layers read: nn::Decoding, nn::Sequences, nn::SourceTokens, nn::ReportsOfStep,
  /// nn::BlockChoices, nn::ClassTokens, and the parts of a program's own layers
  TypedParts parts{};

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
