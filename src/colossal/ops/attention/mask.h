// Evaluates an AttentionMask for the implementations in attention.cpp: as ranges of visible keys, as a tensor of
// visible pairs, as a number of pairs, and as runs of documents. Positions are counted from the position of the first
// key.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/ops/attention/attention.h"

namespace colossal::ops {

/// Checks the tensors and the mask. Errors ("attention"): shapes or a mask that do not fit together (ops::attention).
void check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

/// Checks the mask alone. Errors ("attention"): it does not fit q [B,N,S,D] and k [B,Nkv,T,D].
void check_mask(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Returns the factor of the scores: mask.scale, or 1 / sqrt(D) if that is 0.
double scale_of(const at::Tensor& q, const AttentionMask& mask);

/// Returns how many positions before its own a query sees within the window. Requires mask.window > 0.
int64_t reach_of(const AttentionMask& mask);

/// Returns the start of each document of `documents` [B, T] (on the host), counted through all rows, followed by B T.
/// Returns nullopt if a document's tokens are not contiguous in its row. Cost: one pass.
std::optional<std::vector<int32_t>> document_borders(const at::Tensor& documents);

/// Returns true if each row of `documents` is one document, so that documents hide nothing. Returns false if
/// `documents` is not on the host or is empty.
bool is_document_a_row(const at::Tensor& documents);

/// Returns `numbers` on the device of `q`. A tensor of the host is copied from pinned memory, so the host does not
/// wait.
at::Tensor brought_to(const at::Tensor& q, const at::Tensor& numbers);

/// Returns true for each pair of a query and a key that it may see: [rows, 1, S, T], rows is 1 or B.
at::Tensor visible(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Returns the ALiBi biases to add to the scores: [rows, N, S, T] in `type`.
at::Tensor linear_biases(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask, at::ScalarType type);

/// Returns the full score matrix [B, N, S, T], minus infinity for keys that the query may not see. It is differentiable
/// by LibTorch's autograd. The references use it.
at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Returns the number of (query, key) pairs that the mask lets through in the whole batch. Documents count only if they
/// are on the host. If documents interleave, all keys between the first and the last key of the query's document count.
/// Cost: O(B (S + T)).
int64_t visible_pairs(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// The mask in the form that the kernel takes (AttentionTask): for each query, the run of keys [from, to) that it may
/// see.
struct KeyRanges {
  at::Tensor position, from, to;  ///< int64 [rows, S]; rows is 1 if all batch rows have the same mask
  at::Tensor documents;           ///< undefined if the ranges suffice: documents do not interleave
  at::Tensor query_documents;     ///< undefined if `documents` also holds the queries' ids
  at::Tensor key_position;        ///< int64 [T], for biases; undefined: key j is at position j
};

/// Computes the ranges. Cost: O(B (S + T)).
KeyRanges key_ranges(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Start positions of the documents of a batch, in the form that kernels of an accelerator take.
///
///   const auto runs = std::make_shared<ops::DocumentRuns>(ops::document_runs(documents, device));   // once a batch
///   const ops::AttentionMask mask{.documents = documents, .runs = runs};                            // in each layer
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
