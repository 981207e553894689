// Makes the ForwardContext of a micro-batch: the fields of the batch that layers read.
//
//   nn::ForwardContext step = nn::step_of(micro_batch);              // positions and documents are fields of it
//   step.training = true;
//   nn::ForwardContext decoding = nn::step_of(nn::token_batch(ids, positions));
//   decoding.parts.set(nn::Decoding{cache.get()});
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/tokens.h"

namespace colossal::ops {
struct DocumentRuns;
}

namespace colossal::nn {

///   step.documents = documents;                                      // [B, S], of the host
///   step.known_documents = std::make_shared<nn::BatchDocuments>(documents);
///
/// A cache of what layers compute from the documents of a batch, which are analyzed once for all layers. The first
/// layer fills it and all others read it. One entry is enough, because all layers of a rank have the same tokens, also
/// in backward, where blocks may be recomputed. Thread safety: one thread at a time, like the layers of a rank.
class BatchDocuments {
 public:
  explicit BatchDocuments(at::Tensor documents) : documents_(std::move(documents)) {}

  /// Returns the runs of documents in these tokens, for attention on `device`. Null on the CPU and on meta, where
  /// attention reads documents directly, and for documents that are not in host memory. Cost: one call of
  /// ops::document_runs(), in the first call.
  std::shared_ptr<const ops::DocumentRuns> runs(const Tokens& tokens, at::Device device);
  /// Returns the length of each token's document, counted over the whole row: [B, S] int64 on the CPU, of all tokens of
  /// the batch. Undefined for documents that are not in host memory. Cost: one pass over the documents, in the first
  /// call.
  const at::Tensor& lengths();

 private:
  at::Tensor documents_;
  Tokens tokens_;  // tokens for which runs_ was computed
  std::shared_ptr<const ops::DocumentRuns> runs_;
  at::Tensor lengths_;
};

/// Returns `step` with that micro-batch. step.positions and step.documents are its fields `positions` and `documents`,
/// or undefined if it has no such field. Values that `step` cached for the documents of another batch are dropped.
ForwardContext step_of(tensor::Batch micro_batch, ForwardContext step = {});

/// Returns a batch of tokens without labels: fields `ids` [B, S] and, if defined, `positions` [B, S], int64.
tensor::Batch token_batch(at::Tensor ids, at::Tensor positions = {});

}  // namespace colossal::nn
