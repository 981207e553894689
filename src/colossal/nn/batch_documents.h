// The documents of one batch, analyzed once for all layers.
//
//   step.documents = documents;                                            // [B, S], of the host
//   step.known_documents = std::make_shared<nn::BatchDocuments>(documents);
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "colossal/nn/tokens.h"

namespace colossal::ops {
struct DocumentRuns;
}

namespace colossal::nn {

/// A cache of what layers compute from the documents of a batch. The first layer fills it and all others read it. One
/// entry is enough, because all layers of a rank have the same tokens, also in backward, where blocks may be
/// recomputed. Thread safety: one thread at a time, like the layers of a rank.
class BatchDocuments {
 public:
  explicit BatchDocuments(at::Tensor documents) : documents_(std::move(documents)) {}

  /// Returns the runs of documents in these tokens, for attention on `device`. Null on the CPU and on meta, where
  /// attention reads documents directly, and for documents that are not in host memory. Cost: one call of
  /// ops::document_runs(), in the first call.
  std::shared_ptr<const ops::DocumentRuns> runs(const Tokens& tokens, at::Device device);

 private:
  at::Tensor documents_;
  Tokens tokens_;  // tokens for which runs_ was computed
  std::shared_ptr<const ops::DocumentRuns> runs_;
};

}  // namespace colossal::nn
