// What an AttentionMask lets through, for the paths of attention.cpp: as bounds of runs of keys, as a tensor of what is
// visible, as a number of pairs. Positions are counted from the first key.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/attention.h"

namespace colossal::ops {

/// Errors ("attention"): a mask that does not fit q [B,N,S,D] and k [B,Nkv,T,D].
void check_mask(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// How far to the left a window reaches.
int64_t reach_of(const AttentionMask& mask);

/// True where a query may look: [rows, 1, S, T], rows 1 or B.
at::Tensor visible(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// What ALiBi adds to scores: [rows, N, S, T] in `type`.
at::Tensor linear_biases(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask, at::ScalarType type);

/// Pairs of a query and a key that the rule lets through in the whole batch, whatever documents there are.
int64_t visible_pairs(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// The mask as the kernel takes it (AttentionTask): of each query the run of keys [from, to) that it may see.
struct KeyRanges {
  at::Tensor position, from, to;  ///< int64 [rows, S], rows 1 where all of the batch have the same
  at::Tensor documents;           ///< undefined where the ranges say all: documents that do not interleave
  at::Tensor query_documents;     ///< undefined where `documents` has those of queries, too
};

/// Cost: O(B (S + T)).
KeyRanges key_ranges(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

}  // namespace colossal::ops
