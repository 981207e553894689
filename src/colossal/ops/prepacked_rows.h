// The rows that are multiplied with a PrepackedMatrix, as its kernels read them: in tiles, in the numbers of its type.
#pragma once
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "colossal/ops/prepacked_kernels.h"
#include "colossal/ops/prepacked_matrix.h"

namespace colossal::ops {

/// How the inputs of a PrepackedMatrix are laid out.
struct PackedInputs {
  PackedType type;
  int64_t inputs, padded;  ///< padded with zeros
  int64_t group = 0;       ///< of codes

  bool are_codes() const { return type == PackedType::Int8 || type == PackedType::Int4; }
  int64_t groups() const { return are_codes() ? padded / group : 0; }
};

class PrepackedRows {
 public:
  /// x [rows, inputs] fp32, dense. Codes: scales are times `factor`. Cost: one pass, over threads by tile.
  PrepackedRows(const at::Tensor& x, const PackedInputs& inputs, float factor, const PrepackedKernels& kernels);

  int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  int64_t rows_of(int64_t tile) const { return std::min(kTileRows, rows_ - tile * kTileRows); }
  /// Sets what a product has of the tile.
  void place(int64_t tile, PanelProduct& product) const;

 private:
  void fill(int64_t tile, const float* x, float factor, const PrepackedKernels& kernels);
  char* bytes_of(int64_t tile) const;

  PackedInputs inputs_;
  int64_t rows_;
  at::Tensor numbers_;        // bytes
  at::Tensor scales_, sums_;  // of codes
};

}  // namespace colossal::ops
