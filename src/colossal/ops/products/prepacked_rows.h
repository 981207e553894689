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
  int64_t inputs, padded;  ///< padded: with zeros
  int64_t group = 0;       ///< codes: inputs per group

  bool are_codes() const { return type == PackedType::Int8 || type == PackedType::Int4; }
  int64_t groups() const { return are_codes() ? padded / group : 0; }
};

class PrepackedRows {
 public:
  /// Converts x [rows, inputs], fp32 or bf16 and dense. The scales of codes are multiplied by `factor`. Cost: one pass, blocks
  /// over threads.
  PrepackedRows(const at::Tensor& x, const PackedInputs& inputs, float factor, const PrepackedKernels& kernels);

  int64_t blocks() const { return (rows_ + layout_.rows - 1) / layout_.rows; }
  /// Returns the first row of a block.
  int64_t first_of(int64_t block) const { return block * layout_.rows; }
  int64_t rows_of(int64_t block) const { return std::min(layout_.rows, rows_ - first_of(block)); }
  /// Sets the members of `product` that describe the block.
  void place(int64_t block, PanelProduct& product) const;

 private:
  char* bytes_of(int64_t block) const;

  PackedInputs inputs_;
  RowLayout layout_;
  int64_t rows_;
  at::Tensor numbers_;        // bytes
  at::Tensor scales_, sums_;  // codes: block by block, [groups][rows of the block] each
};

}  // namespace colossal::ops
