// y = x Wt + bias and dx = dy W for a weight that is decoded slice by slice, so that W never exists whole in the dtype
// of x. Weights in several formats share it (ops/products/placed_matrix.h, ops/products/row_matrix.h).
//
//   return multiply_decoded(x, bias, {out, in}, is_for_accelerator(codes), [&](const MatrixPart& part, auto type,
//                                                                              auto rounds_to) {
//     return values_of(part).to(type);                                                           // [rows, columns]
//   });
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/products/nf4_weight.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {

/// Sizes of a weight that is decoded, and how its slices are cut. Slices are equal and begin at multiples of `unit`.
struct DecodedSizes {
  const char* component;  ///< of errors
  int64_t outputs, inputs;
  bool on_accelerator = false;
  int64_t unit = 64;

  /// Returns how many of `length` rows or columns, of `width` elements each, a slice has: 2^20 elements on a CPU or 128
  /// rows or columns, whichever is more.
  int64_t slice_of(int64_t length, int64_t width) const {
    // Slices of this size stay in the caches of a CPU between decoding and the product. Products of thinner ones are
    // slower by a tenth. The columns of a slice are few, because a matrix may have many rows.
    constexpr int64_t kElements = int64_t{1} << 20, kWidth = 128;
    const int64_t most = std::max(kWidth, (on_accelerator ? kSliceElements : kElements) / width);
    const int64_t slices = (length + most - 1) / most, equal = (length + slices - 1) / slices;
    return std::min(length, (equal + unit - 1) / unit * unit);
  }
  /// Returns x as rows in the dtype of the products. Errors: another number of columns.
  at::Tensor rows_of(const at::Tensor& x, int64_t columns, const char* what) const {
    require(x.dim() > 0 && x.size(-1) == columns && x.is_floating_point(), component, what, " must be [..., ", columns,
            "]: got ", x.scalar_type(), " ", x.sizes());
    return x.reshape({-1, columns}).to(product_type(x));
  }
  /// Returns rows in the dtype and with the leading sizes of x.
  static at::Tensor as_given(const at::Tensor& rows, const at::Tensor& x) {
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = rows.size(1);
    return rows.to(x.scalar_type()).view(sizes);
  }
};

/// Returns x Wt + bias [..., out], without autograd. decode(part, type, rounds_to) returns that part of W in `type`,
/// rounded to `rounds_to`, which may be narrower; its result is not used after the next call.
template <class Decode>
at::Tensor multiply_decoded(const at::Tensor& x, const at::Tensor& bias, const DecodedSizes& sizes,
                            const Decode& decode) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == sizes.outputs), sizes.component, "the bias must be [",
          sizes.outputs, "]");
  const at::Tensor rows = sizes.rows_of(x, sizes.inputs, "x");
  const tensor::FactorScope factors(x.scalar_type());
  at::Tensor y = at::empty({rows.size(0), sizes.outputs}, rows.options().requires_grad(false));
  const int64_t slice = sizes.slice_of(sizes.outputs, sizes.inputs);
  for (int64_t first = 0; first < sizes.outputs; first += slice) {
    const MatrixPart part{.row = first, .rows = std::min(slice, sizes.outputs - first), .columns = sizes.inputs};
    const at::Tensor values = decode(part, rows.scalar_type(), x.scalar_type());
    at::Tensor out = y.narrow(1, first, part.rows);
    if (bias.defined())  // before the sums are rounded
      out.copy_(matmul_nt(rows, values, bias.narrow(0, first, part.rows).to(rows.scalar_type())));
    else
      matmul_nt_(out, rows, values, 0);
  }
  return DecodedSizes::as_given(y, x);
}

/// Returns dy W [..., in], without autograd.
template <class Decode>
at::Tensor input_gradient_decoded(const at::Tensor& dy, const DecodedSizes& sizes, const Decode& decode) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows = sizes.rows_of(dy, sizes.outputs, "dy");
  const tensor::FactorScope factors(dy.scalar_type());
  at::Tensor dx = at::empty({rows.size(0), sizes.inputs}, rows.options().requires_grad(false));
  const int64_t slice = sizes.slice_of(sizes.inputs, sizes.outputs);
  for (int64_t first = 0; first < sizes.inputs; first += slice) {
    const MatrixPart part{.rows = sizes.outputs, .column = first, .columns = std::min(slice, sizes.inputs - first)};
    at::Tensor out = dx.narrow(1, first, part.columns);
    matmul_nn_(out, rows, decode(part, rows.scalar_type(), dy.scalar_type()));
  }
  return DecodedSizes::as_given(dx, dy);
}

}  // namespace colossal::ops
