// Collectives with one byte per element, for gradients and parameters that tolerate an error.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/comm/compression.h"
#include "colossal/comm/group.h"

namespace colossal::comm {

/// Returns the size in bytes of a message of `numel` elements: (4 + block) for each block or part of a block;
/// 4 + numel with block 0.
int64_t compressed_bytes(int64_t numel, const Compression& compression);

/// Returns a message of compressed_bytes(k) bytes for each row of x [n, k]: its scales, then its quantized values. The
/// last block of a row is padded. A block with a number that is not finite arrives as NaN. No autograd.
/// Shapes: any n, also 0; fp64, fp32, bf16 or fp16; computed in fp32. On meta the result has no values.
at::Tensor compressed_rows(const at::Tensor& x, const Compression& compression);
/// Returns the rows [n, k] of those messages. E4m3: values are exact in `dtype`, bf16 too, as far as its range goes.
at::Tensor restored_rows(const at::Tensor& messages, int64_t k, const Compression& compression, at::ScalarType dtype);

// The three functions below have in common:
//
// Shapes: contiguous; fp64, fp32, bf16 or fp16; computed in fp32. A block with a number that is not finite arrives as
//         NaN.
// Bytes:  with long blocks, half the bytes of bf16 and a quarter of fp32. A group of one rank makes an exact copy and
//         sends nothing.
// Errors: throws Error("compressed", ...) for other dtypes, sizes that do not match and blocks below 0, before any
//         communication.

/// out [n * numel(in)] <- every rank's `in` after compression, in rank order; the same bits on all ranks, including
/// the sender. `in` may change as soon as the function returns; wait() of the result writes `out`.
///
/// Bytes: one all_gather; sends (n-1) * compressed_bytes(numel(in)).
/// Error: E4m3: max|in| / 16 at most, relative rms 0.026 of normal numbers. Int8: max|block| / 254; in blocks of 128
///        relative rms 0.0065.
Work compressed_all_gather(at::Tensor& out, const at::Tensor& in, Group& group, const Compression& compression);

/// out <- slice rank() of the sum of `in` [n * numel(out)] over all ranks. Each rank receives its slice from every
/// other rank, and sums the received slices in fp32, in rank order. `in` may change as soon as the function returns;
/// wait() of the result writes `out`.
///
/// Bytes: one all_to_all; sends (n-1) * compressed_bytes(numel(out)). Each slice starts a new block.
/// Error: the sum of the ranks' errors. E4m3: max|in| / 16 each at most, relative rms 0.026; zero if the terms are
///        numbers of the format. Int8: max|block| / 254 each; 0.0065.
Work compressed_reduce_scatter(at::Tensor& out, const at::Tensor& in, Group& group, const Compression& compression);

/// x <- sum of x over all ranks, in place; the same bits on all ranks. It is a reduce_scatter followed by an
/// all_gather of the sums: only two hops, so that no number is rounded n times on its way. Returns after completion,
/// because the second hop must have the same position among the group's collectives on every rank.
///
/// Bytes:  sends 2 (n-1) * compressed_bytes(ceil(numel / n)). Scales belong to those parts, or to blocks in them.
/// Memory: two sets of quantized values, and fp32 copies of x during compression.
/// Error:  E4m3: (sum of max|x| over the ranks + max|result|) / 16 at most, relative rms 0.037 of normal numbers; zero
///         if terms and sums are numbers of the format. Int8: the same with / 254; 0.009.
void compressed_all_reduce(at::Tensor& x, Group& group, const Compression& compression);

}  // namespace colossal::comm
