// Counter-based random numbers: a value depends on (seed, logical index) only. It does not depend on the caller, the
// order, the number of threads or the shard. So a sharded parameter is initialised, and a sharded activation is
// dropped, as in one process.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace colossal::ops {

/// Philox4x32-10: four independent 32-bit words for a counter and a key. See: Salmon et al., SC'11.
std::array<uint32_t, 4> philox(uint64_t counter, uint64_t seed);

/// Writes the words of logical indices [first, first + count): word i % 4 of the block of counter i / 4.
void random_words(uint64_t seed, uint64_t first, int64_t count, uint32_t* out);

/// Returns the words of logical indices `index` (int64, not negative), each in an int64. It uses ATen integer operators
/// on the device of `index`: the reference, and the path of accelerators without kernels of ours.
/// Cost: about sixty passes over int64 tensors. About ten int64 values per word exist at a time, 80 bytes; callers that
///       need many words should draw them in slices.
at::Tensor random_words_reference(const at::Tensor& index, uint64_t seed);

/// Fills local[local_start, local_start+size) with normal variates of mean 0 and the given deviation. The element at
/// logical index (start + offset) gets the value of its row-major linear index in `shape`.
///
/// Shapes:  `shape`, `start`, `local_start` and `size` have local.dim() entries. [start, start+size) is inside `shape`,
///          and [local_start, local_start+size) inside `local`.
/// Values:  drawn in fp32 by arithmetic that is the same on every x86-64 machine, then rounded to the dtype of `local`
///          (fp32, fp64, bf16 or fp16). On an accelerator they are drawn on the host and copied.
/// Errors:  throws if a box does not fit.
/// Cost:    about 2 ns per element and thread.
void fill_normal(at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
                 const std::vector<int64_t>& local_start, const std::vector<int64_t>& size, uint64_t seed,
                 double deviation);

/// Fills a box in the same way with values between -bound and bound, all equally likely: multiples of bound * 2^-23.
void fill_uniform(at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
                  const std::vector<int64_t>& local_start, const std::vector<int64_t>& size, uint64_t seed,
                  double bound);

/// Positions of a shard's rows in a logical matrix: runs of `run` neighbouring rows; each run begins `stride` rows
/// after the one before. Tokens [s, s + run) of every row of a batch are such runs; their stride is the sequence
/// length.
struct LogicalRows {
  LogicalRows(int64_t first, int64_t run = 1, int64_t stride = 1) : first(first), run(run), stride(stride) {}
  int64_t first, run, stride;  ///< equal run and stride: all rows are neighbours
  int64_t operator()(int64_t row) const { return first + row / run * stride + row % run; }
};

/// Sets each element to 0 with probability p and multiplies the others by 1 / (1 - p).
///
/// Shapes:   x [..., cols], viewed as [*, cols], is part of a logical matrix [*, logical_cols]. `rows` gives its rows
///           there, and its columns start at first_col. Whether an element is dropped depends on (seed, its index in
///           that matrix), so all shards together are dropped as in one process.
/// Gradient: the same mask, drawn again; nothing is saved.
/// Errors:   throws unless 0 <= p < 1, the offsets are not negative and first_col + cols <= logical_cols.
/// Cost:     p = 0 returns x itself. Else one pass. On an accelerator without kernels of ours (ops/device/tables.h) the
///           mask is computed by ATen integer operators: same mask, some hundred times the traffic.
at::Tensor dropout(const at::Tensor& x, double p, uint64_t seed, const LogicalRows& rows, int64_t first_col,
                   int64_t logical_cols);

/// Returns the mask of `dropout` (true = kept), computed by ATen integer operators on any device: its reference.
at::Tensor dropout_mask_reference(int64_t count, int64_t cols, double p, uint64_t seed, const LogicalRows& rows,
                                  int64_t first_col, int64_t logical_cols, at::Device device);

/// Returns values [count, cols], uniform in [-1, 1), in fp32 on `device`: rows and columns of a logical matrix as in
/// dropout(). A value depends on (seed, its index in that matrix), and is a multiple of 2^-23.
/// Errors: as dropout().
/// Cost:   one pass on the CPU; elsewhere ATen integer operators, in slices.
at::Tensor uniform(int64_t count, int64_t cols, uint64_t seed, const LogicalRows& rows, int64_t first_col,
                   int64_t logical_cols, at::Device device);

}  // namespace colossal::ops
