// The tables of residues (protein/residues.h) as tensors.
//
//   const ops::ResidueTables tables = residue_tables(s.options());          // the device and dtype of s
//   const at::Tensor exists = ops::residue_rows(tables.mask37, types);          // [B, N, 37]
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/geometry/residue_tables.h"

namespace colossal::models {

/// Returns the tables of the 20 types and of X, floating-point ones in the dtype of `options`, all on its device.
/// `tolerance`: standard deviations of bonds in the bounds of distances.
ops::ResidueTables residue_tables(const at::TensorOptions& options, double tolerance = 12);

}  // namespace colossal::models
