// Matrix passes for optimizers that store second moments per row and per column.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Adds square sums: rows[i] += sum over j of matrix[i, j]^2 and columns[j] += sum over i of the same, in one pass over
/// the matrix.
///
/// Shapes:  matrix [n, m] of any float dtype, rows [n] and columns [m] fp64, contiguous, on its device.
/// Numbers: squares and sums are in fp64. The result is the same if the thread count is the same.
/// Cost:    on accelerators slices of 2^22 elements; two fp64 tensors of a slice exist at a time.
/// Errors:  throws on other shapes and dtypes of the sums.
void add_square_sums(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns);
void add_square_sums_reference(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns);

/// Computes to[i, j] = from[i, j] * rows[i] * columns[j] in one pass. Returns the sum of the squares of the results
/// before rounding: a 0-dim fp64 tensor on the device of `to`. The host does not wait for it.
///
/// Shapes:  from and to [n, m], which may be the same; rows [n] and columns [m] contiguous.
/// Dtypes:  `from` and `to` have any float dtype. Rows and columns are fp64 for fp64 `to`, else fp32; products are
///          computed in that dtype. Squares are added up in short runs in that dtype, and in fp64 over the runs. The
///          CPU is fast if the dtypes are equal, or if `from` is bf16 or fp16 and `to` is fp32.
/// Cost:    on accelerators slices of 2^22 elements; about 20 bytes per element of a slice at a time.
/// Errors:  throws on other shapes and dtypes.
at::Tensor scale_rows_columns(const at::Tensor& from, const at::Tensor& rows, const at::Tensor& columns,
                              const at::Tensor& to);
at::Tensor scale_rows_columns_reference(const at::Tensor& from, const at::Tensor& rows, const at::Tensor& columns,
                                        const at::Tensor& to);

}  // namespace colossal::ops
