// The rows to multiply with a PrepackedMatrix, in the layout of its kernels: blocks of rows, in the element type of the
// matrix.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "colossal/ops/products/prepacked_kernels.h"
#include "colossal/ops/products/prepacked_matrix.h"

namespace colossal::ops {

/// Layout of the inputs of a PrepackedMatrix.
struct PackedInputs {
  PackedType type;
  bool is_bf16;            ///< the rows are bf16, else fp32
  int64_t inputs, padded;  ///< padded: with zeros
  int64_t group = 0;       ///< codes: inputs per group

  bool are_codes() const { return type == PackedType::Int8 || type == PackedType::Int4; }
  int64_t groups() const { return are_codes() ? padded / group : 0; }
};

class PrepackedRows {
 public:
  /// Takes dense rows [rows, inputs], which must outlive the calls of lay_out(). The scales of codes are multiplied by
  /// `factor`, and rows in fp32 for fp8 weights by kFp8RowFactor.
  PrepackedRows(const void* x, int64_t rows, const PackedInputs& inputs, float factor, const PrepackedKernels& kernels);

  /// Returns the bytes that `rows` rows take in the layout.
  static int64_t bytes_of(int64_t rows, const PackedInputs& inputs, const PrepackedKernels& kernels);

  int64_t rows() const { return rows_; }
  int64_t blocks() const { return (rows_ + layout_.rows - 1) / layout_.rows; }
  /// Returns the first row of a block.
  int64_t first_of(int64_t block) const { return block * layout_.rows; }
  int64_t rows_of(int64_t block) const { return std::min(layout_.rows, rows_ - first_of(block)); }
  /// Converts a block, once, before it is placed. Cost: one pass over its rows. Any threads may convert other blocks.
  void lay_out(int64_t block) const;
  /// Sets the members of `product` that describe the block.
  void place(int64_t block, PanelProduct& product) const;

 private:
  PackedInputs inputs_;
  RowLayout layout_;
  int64_t rows_, row_bytes_;
  PrepackedKernels::LayOut lay_out_;
  at::Tensor memory_;
  RowsToLayOut all_;  // the members that blocks share
  // Parts of memory_: the numbers and, of codes, scales and sums, block by block, [groups][rows of the block] each.
  char* numbers_ = nullptr;
  float* scales_ = nullptr;
  int32_t* sums_ = nullptr;
};

}  // namespace colossal::ops
