// Gathering and summing over ranks with a byte an element: for gradients and parameters that bear an error.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/comm/compression.h"
#include "colossal/comm/group.h"

namespace colossal::comm {

/// Bytes of a message of `numel` elements: (4 + block) for each block begun.
int64_t compressed_bytes(int64_t numel, const Compression& compression);

// For the three below:
//
// Shapes: contiguous; fp64, fp32, bf16 or fp16; computed in fp32. A block with a number that is not finite arrives as
//         NaN.
// Bytes:  with long blocks half of bf16, a quarter of fp32. A group of one rank: a copy, exact, nothing sent.
// Errors: throws Error("compressed", ...) for other dtypes, sizes that do not fit and blocks below 0, before any
//         communication.

/// out [n * numel(in)] <- every rank's `in` as it arrives, in rank order; the same bits on all ranks, its sender
/// included. `in` may change at once; `out` is written by wait() of the result.
///
/// Bytes: one all_gather; sends (n-1) * compressed_bytes(numel(in)).
/// Error: E4m3: max|in| / 16 at most, relative rms 0.026 of normal numbers. Int8: max|block| / 254; in blocks of 128
///        relative rms 0.0065.
Work compressed_all_gather(at::Tensor& out, const at::Tensor& in, Group& group, const Compression& compression);

/// out <- slice rank() of the sum of `in` [n * numel(out)] over all ranks: each rank gets its slice of every other's,
/// and sums in fp32, in rank order, what arrived. `in` may change at once; `out` is written by wait() of the result.
///
/// Bytes: one all_to_all; sends (n-1) * compressed_bytes(numel(out)). Blocks begin anew in each slice.
/// Error: the sum of the ranks' errors. E4m3: max|in| / 16 each at most, relative rms 0.026; zero where the terms are
///        numbers of the format. Int8: max|block| / 254 each; 0.0065.
Work compressed_reduce_scatter(at::Tensor& out, const at::Tensor& in, Group& group, const Compression& compression);

/// x <- sum of x over all ranks, in place; the same bits on all ranks. A reduce_scatter, then an all_gather of the
/// sums: two hops, so that no number is rounded n times on its way. Returns when it is done: the second hop must not
/// start at another place among the group's collectives on each rank.
///
/// Bytes:  sends 2 (n-1) * compressed_bytes(ceil(numel / n)). Scales are of those parts, or of blocks in them.
/// Memory: codes twice, fp32 copies of x while they are made.
/// Error:  E4m3: (sum of max|x| over the ranks + max|result|) / 16 at most, relative rms 0.037 of normal numbers; zero
///         where terms and sums are numbers of the format. Int8: the same with / 254; 0.009.
void compressed_all_reduce(at::Tensor& x, Group& group, const Compression& compression);

}  // namespace colossal::comm
