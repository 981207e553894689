// Start positions of the documents of a batch, in the form that kernels of an accelerator take.
//
//   const auto runs = std::make_shared<ops::DocumentRuns>(ops::document_runs(documents, device));   // once a batch
//   const ops::AttentionMask mask{.documents = documents, .runs = runs};                            // in each layer
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

struct DocumentRuns {
  bool is_one_a_row = false;  ///< one document per row: documents hide nothing
  /// int32 [documents + 1] on the device: start of each document, counted through all rows, then B S. Undefined if a
  /// document's tokens are not contiguous in its row, or if is_one_a_row.
  at::Tensor borders;
  int64_t longest = 0;  ///< length of the longest document in tokens; 0 if `borders` is undefined
};

/// Finds the runs of `documents` [B, S], which must be on the host. Cost: two passes over them. If a row has several
/// documents, 4 bytes per document are copied to `device` from pinned memory, and the host does not wait.
DocumentRuns document_runs(const at::Tensor& documents, at::Device device);

}  // namespace colossal::ops
