// The documents of one batch, of which all layers want to know the same.
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

/// What the first layer finds out about the documents of a batch, and all others take from here. Those of a rank have
/// the same tokens, and in backward, where blocks may be computed again, they are still the same: so one answer is
/// kept. Thread safety: one thread at a time, as the layers of a rank are.
class BatchDocuments {
 public:
  explicit BatchDocuments(at::Tensor documents) : documents_(std::move(documents)) {}

  /// Returns the runs of documents in these tokens, for attention on `device`. Null on the CPU and on meta, where
  /// attention reads documents itself, and for documents that the host does not know. Cost: that of
  /// ops::document_runs(), in the first call.
  std::shared_ptr<const ops::DocumentRuns> runs(const Tokens& tokens, at::Device device);

 private:
  at::Tensor documents_;
  Tokens tokens_;  // of runs_
  std::shared_ptr<const ops::DocumentRuns> runs_;
};

}  // namespace colossal::nn
