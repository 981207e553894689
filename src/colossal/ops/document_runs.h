// Where the documents of a batch begin, as kernels of an accelerator want to know it.
//
//   const auto runs = std::make_shared<ops::DocumentRuns>(ops::document_runs(documents, device));   // once a batch
//   const ops::AttentionMask mask{.documents = documents, .runs = runs};                            // in each layer
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

struct DocumentRuns {
  bool is_one_a_row = false;  ///< so that documents hide nothing
  /// int32 [documents + 1], on the device: where each begins, counted through all rows, and B S. Undefined where a row
  /// takes a document up again
  at::Tensor borders;
  int64_t longest = 0;  ///< of the documents, in tokens
};

/// Finds the runs of documents [B, S] that the host knows. Cost: two passes over them. If a row has several documents,
/// 4 bytes per document are copied to `device` from pinned memory, without a wait of the host.
DocumentRuns document_runs(const at::Tensor& documents, at::Device device);

}  // namespace colossal::ops
