// Gathering and summing over ranks with a byte an element: for gradients and parameters that bear an error.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/comm/group.h"

namespace colossal::parallel {

/// How a message is made of numbers: a code of 1 byte each, and an fp32 scale for every `block` of them, which travels in front of the codes.
struct Compression {
  enum class Format {
    E4m3,  ///< error up to 2^-4 of each number. Scales are powers of two: numbers that the format holds, up to such a scale, arrive as they are
    Int8,  ///< error up to 1/254 of the block's largest magnitude: keep blocks short where magnitudes differ
  };
  Format format = Format::E4m3;
  int64_t block = 0;  ///< elements that share a scale, 128 for instance; 0: the whole message
};

/// Bytes of a message of `numel` elements: (4 + block) for each block begun.
int64_t compressed_bytes(int64_t numel, const Compression& compression);

/// out [n * numel(in)] <- every rank's `in` as it arrives, in rank order; the same bits on all ranks, its sender included.
///
/// Shapes: contiguous; fp64, fp32 or bf16; computed in fp32. A block with a number that is not finite arrives as NaN.
/// Bytes:  one all_gather; sends (n-1) * compressed_bytes(numel(in)): with long blocks half of bf16, a quarter of fp32. A group of one rank: a copy, exact.
/// Error:  E4m3: max|in| / 16 at most, relative rms 0.026 of normal numbers. Int8: max|block| / 254; in blocks of 128 relative rms 0.006.
/// Errors: throws Error("compressed", ...) for other dtypes, sizes that do not fit and blocks below 0, before any communication.
void compressed_all_gather(at::Tensor& out, const at::Tensor& in, comm::Group& group, const Compression& compression);

/// x <- sum of x over all ranks, in place; the same bits on all ranks. Each rank gets its part of every other's x, sums in fp32 what arrived, and sends the sum to all:
/// two hops, so that no number is rounded n times on its way.
///
/// Shapes: as above.
/// Bytes:  one all_to_all and one all_gather; sends 2 (n-1) * compressed_bytes(ceil(numel / n)). Scales are of those parts, or of blocks in them.
/// Memory: codes twice, fp32 copies of x while they are made.
/// Error:  E4m3: (sum of max|x| over the ranks + max|result|) / 16 at most, relative rms 0.037 of normal numbers; zero where terms and sums are
///         numbers of the format. Int8: the same with / 254; 0.009.
/// Errors: as above.
void compressed_all_reduce(at::Tensor& x, comm::Group& group, const Compression& compression);

}  // namespace colossal::parallel
