// Passes over matrices whose second moments are kept by their rows and columns.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// rows[i] += sum over j of matrix[i, j]^2; columns[j] += sum over i of the same, in one pass over the matrix.
///
/// Shapes:  matrix [n, m] of any float dtype, rows [n] and columns [m] fp64, contiguous, on its device.
/// Numbers: squares and sums in fp64; the same values whenever the thread count is the same.
/// Cost:    on accelerators slices of 2^22 elements, two fp64 tensors of a slice at one time.
/// Errors:  throws on other shapes and dtypes of the sums.
void add_square_sums(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns);
void add_square_sums_reference(const at::Tensor& matrix, const at::Tensor& rows, const at::Tensor& columns);

/// to[i, j] = from[i, j] * rows[i] * columns[j] in one pass; returns the sum of the squares of what it wrote, before
/// rounding: a 0-dim fp64 tensor on the device of `to`, for which nobody waits here.
///
/// Shapes:  from and to [n, m], which may be the same; rows [n] and columns [m] contiguous.
/// Dtypes:  any float ones of `from` and `to`, rows and columns fp64 with fp64 `to`, else fp32, in which products are
///          computed; squares are added up in short runs of that dtype and in fp64 over the runs. Fast on the CPU for
///          dtypes that are equal, and bf16 or fp16 beside fp32.
/// Cost:    on accelerators slices of 2^22 elements, some 20 bytes an element of a slice at one time.
/// Errors:  throws on other shapes and dtypes.
at::Tensor scale_rows_columns(const at::Tensor& from, const at::Tensor& rows, const at::Tensor& columns,
                              const at::Tensor& to);
at::Tensor scale_rows_columns_reference(const at::Tensor& from, const at::Tensor& rows, const at::Tensor& columns,
                                        const at::Tensor& to);

}  // namespace colossal::ops
