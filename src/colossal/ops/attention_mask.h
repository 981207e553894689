// What an AttentionMask lets through, for the paths of attention.cpp: as bounds of runs of keys, as a tensor of what is
// visible, as a number of pairs. Positions are counted from that of the first key.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/ops/attention.h"

namespace colossal::ops {

/// Errors ("attention"): shapes or a mask that do not fit together (ops::attention).
void check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask);

/// Errors ("attention"): a mask that does not fit q [B,N,S,D] and k [B,Nkv,T,D].
void check_mask(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// The factor of scores: the mask's, or 1 / sqrt(D).
double scale_of(const at::Tensor& q, const AttentionMask& mask);

/// How far to the left a window reaches.
int64_t reach_of(const AttentionMask& mask);

/// Where documents [B, T] of the host begin, counted through all rows, and B T behind them; none where a row takes a
/// document up again. Cost: one pass.
std::optional<std::vector<int32_t>> document_borders(const at::Tensor& documents);

/// Whether every row of documents that the host knows is one, so that they hide nothing.
bool is_document_a_row(const at::Tensor& documents);

/// `numbers` on the device of `q`: those of the host from pinned memory, so that it does not wait.
at::Tensor brought_to(const at::Tensor& q, const at::Tensor& numbers);

/// True where a query may look: [rows, 1, S, T], rows 1 or B.
at::Tensor visible(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// What ALiBi adds to scores: [rows, N, S, T] in `type`.
at::Tensor linear_biases(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask, at::ScalarType type);

/// Whole scores [B, N, S, T], minus infinity where a query may not look, differentiable by LibTorch: of the references.
at::Tensor attention_scores(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Pairs of a query and a key that the mask lets through in the whole batch. Documents count where the host knows them;
/// of those that interleave everything between the first and the last key of a query's document. Cost: O(B (S + T)).
int64_t visible_pairs(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// The mask as the kernel takes it (AttentionTask): of each query the run of keys [from, to) that it may see.
struct KeyRanges {
  at::Tensor position, from, to;  ///< int64 [rows, S], rows 1 where all of the batch have the same
  at::Tensor documents;           ///< undefined where the ranges say all: documents that do not interleave
  at::Tensor query_documents;     ///< undefined where `documents` has those of queries, too
  at::Tensor key_position;        ///< int64 [T], for biases; undefined: of key j it is j
};

/// Cost: O(B (S + T)).
KeyRanges key_ranges(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

}  // namespace colossal::ops
