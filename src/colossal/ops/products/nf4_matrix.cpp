#include "colossal/ops/products/nf4_matrix.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/products/decoded_products.h"

namespace colossal::ops {

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

// Slices begin between blocks if the matrix does.
DecodedSizes Nf4Matrix::sizes() const {
  return {"nf4", outputs_, inputs_, is_for_accelerator(parts_.front().bytes()), kNf4Block};
}

at::Tensor Nf4Matrix::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  at::Tensor room;
  return multiply_decoded(x, bias, sizes(), [&](const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) {
    return decoded(part, type, rounds_to, room);
  });
}

at::Tensor Nf4Matrix::input_gradient(const at::Tensor& dy) const {
  at::Tensor room;
  return input_gradient_decoded(dy, sizes(),
                                [&](const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) {
                                  return decoded(part, type, rounds_to, room);
                                });
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
