#include "colossal/ops/products/nf4_matrix.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

// Slices of this size stay in the caches of a CPU between decoding and the product. Products of thinner ones are slower
// by a tenth. The columns of a slice are few, because a matrix may have many rows.
constexpr int64_t kNf4SliceElements = int64_t{1} << 20, kNf4SliceWidth = 128;

/// Returns x as rows in the dtype of the products.
at::Tensor rows_for_product(const at::Tensor& x, int64_t columns, const char* what) {
  require(x.dim() > 0 && x.size(-1) == columns && x.is_floating_point(), "nf4", what, " must be [..., ", columns,
          "]: got ", x.scalar_type(), " ", x.sizes());
  return x.reshape({-1, columns}).to(product_type(x));
}

/// Returns rows in the dtype and with the leading sizes of x.
at::Tensor as_given(const at::Tensor& rows, const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.to(x.scalar_type()).view(sizes);
}

}  // namespace

Nf4Matrix::Nf4Matrix(std::vector<Nf4Weight> parts, int64_t inputs) : parts_(std::move(parts)) {
  require(!parts_.empty(), "nf4", "a matrix must have at least one part");
  const Nf4Weight& first = parts_.front();
  inputs_ = inputs == 0 ? first.inputs() : inputs, transposed_ = first.form().transposed;
  for (const Nf4Weight& part : parts_) {
    require((inputs == 0 ? part.inputs() == inputs_ : part.inputs() <= inputs_) &&
                part.form().transposed == transposed_ && part.bytes().device() == first.bytes().device(),
            "nf4", "parts of a matrix must have the same inputs, orientation and device: got ", part.inputs(), " and ",
            inputs_, " inputs");
    outputs_ += part.outputs();
  }
}

Nf4Matrix Nf4Matrix::of(const std::vector<Nf4Form>& forms, const at::Tensor& bytes, int64_t inputs) {
  std::vector<Nf4Weight> parts;
  int64_t first = 0;
  require(bytes.dim() == 1 && bytes.numel() == bytes_of(forms), "nf4", "parts of these forms must be ", bytes_of(forms),
          " bytes: got ", bytes.sizes());
  for (const Nf4Form& form : forms) {
    parts.emplace_back(form, bytes.narrow(0, first, form.bytes()));
    first += form.bytes();
  }
  return Nf4Matrix(std::move(parts), inputs);
}

int64_t bytes_of(const std::vector<Nf4Form>& forms) {
  int64_t sum = 0;
  for (const Nf4Form& form : forms) sum += form.bytes();
  return sum;
}

/// Decodes a part, rounded to `rounds_to`, into `room`, which is made or grows if it is too small. Returns a view of
/// it, [rows, columns].
at::Tensor Nf4Matrix::decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to,
                              at::Tensor& room) const {
  if (!room.defined() || room.numel() < part.rows * part.columns)
    room = at::empty({part.rows * part.columns}, parts_.front().bytes().options().dtype(type));
  const at::Tensor flat = room.narrow(0, 0, part.rows * part.columns);
  const at::Tensor values =
      transposed_ ? flat.view({part.columns, part.rows}).t() : flat.view({part.rows, part.columns});
  int64_t begin = 0;  // first row of a weight
  for (const Nf4Weight& weight : parts_) {
    const int64_t from = std::max(part.row, begin), to = std::min(part.row + part.rows, begin + weight.outputs());
    if (from < to) {
      const int64_t columns = std::clamp<int64_t>(weight.inputs() - part.column, 0, part.columns);
      const at::Tensor rows = values.narrow(0, from - part.row, to - from), its = rows.narrow(1, 0, columns);
      if (columns < part.columns) rows.narrow(1, columns, part.columns - columns).zero_();
      if (columns > 0 && transposed_)
        decode_nf4_(its.t(), weight, part.column, from - begin, rounds_to);
      else if (columns > 0)
        decode_nf4_(its, weight, from - begin, part.column, rounds_to);
    }
    begin += weight.outputs();
  }
  return values;
}

// Returns how many of `length` rows or columns, of `width` elements each, a slice has. Slices are equal, and begin
// between blocks if the matrix does.
int64_t Nf4Matrix::slice_of(int64_t length, int64_t width) const {
  const int64_t elements = is_for_accelerator(parts_.front().bytes()) ? kSliceElements : kNf4SliceElements;
  const int64_t most = std::max(kNf4SliceWidth, elements / width), slices = (length + most - 1) / most;
  const int64_t equal = (length + slices - 1) / slices;
  return std::min(length, (equal + kNf4Block - 1) / kNf4Block * kNf4Block);
}

at::Tensor Nf4Matrix::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == outputs_), "nf4", "the bias must be [", outputs_, "]");
  const at::Tensor rows = rows_for_product(x, inputs_, "x");
  const tensor::FactorScope factors(x.scalar_type());
  at::Tensor y = at::empty({rows.size(0), outputs_}, rows.options().requires_grad(false)), room;
  const int64_t slice = slice_of(outputs_, inputs_);
  for (int64_t first = 0; first < outputs_; first += slice) {
    const MatrixPart part{.row = first, .rows = std::min(slice, outputs_ - first), .columns = inputs_};
    at::Tensor out = y.narrow(1, first, part.rows);
    matmul_nt_(out, rows, decoded(part, rows.scalar_type(), x.scalar_type(), room), 0);
  }
  if (bias.defined()) y.add_(bias);
  return as_given(y, x);
}

at::Tensor Nf4Matrix::input_gradient(const at::Tensor& dy) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor rows = rows_for_product(dy, outputs_, "dy");
  const tensor::FactorScope factors(dy.scalar_type());
  at::Tensor dx = at::empty({rows.size(0), inputs_}, rows.options().requires_grad(false)), room;
  const int64_t slice = slice_of(inputs_, outputs_);
  for (int64_t first = 0; first < inputs_; first += slice) {
    const MatrixPart part{.rows = outputs_, .column = first, .columns = std::min(slice, inputs_ - first)};
    at::Tensor out = dx.narrow(1, first, part.columns);
    matmul_nn_(out, rows, decoded(part, rows.scalar_type(), dy.scalar_type(), room));
  }
  return as_given(dx, dy);
}

at::Tensor Nf4Matrix::dequantize(at::ScalarType type) const {
  return dequantize(type, {.rows = outputs_, .columns = inputs_});
}

at::Tensor Nf4Matrix::dequantize(at::ScalarType type, const MatrixPart& part) const {
  require(part.row >= 0 && part.rows > 0 && part.rows <= outputs_ - part.row && part.row_step == 1 &&
              part.column >= 0 && part.columns > 0 && part.columns <= inputs_ - part.column,
          "nf4", "a part must be inside of [", outputs_, ", ", inputs_, "]: got ", part.rows, " rows from ", part.row,
          ", ", part.columns, " columns from ", part.column);
  at::Tensor room;
  return decoded(part, type, type, room);
}

}  // namespace colossal::ops
