#include "colossal/ops/products/placed_matrix.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/kernels.h"
#include "colossal/ops/products/decoded_products.h"

namespace colossal::ops {
namespace {

constexpr char kPlaced[] = "quantization";
constexpr int64_t kMaxUnit = 1024;  // columns that slices have at least; a group may be a whole row

bool is_transposed(const PlacedWeight& one) {
  const auto* nf4 = std::get_if<Nf4Weight>(&one.weight);
  return nf4 && nf4->form().transposed;
}

int64_t slice_unit(const PlacedWeight& one) {
  const auto* groups = std::get_if<GroupWeight>(&one.weight);
  return groups ? std::min(groups->form().group, kMaxUnit) : kNf4Block;
}

/// The part that a weight has of rows or columns [first, first + count), from its own `begin` on.
struct Common {
  Common(int64_t first, int64_t count, int64_t place, int64_t size)
      : begin(std::max<int64_t>(first - place, 0)), count(std::min(first + count, place + size) - place - begin) {}
  int64_t begin, count;
};

/// Decodes a part of a weight into `out`, rounded to `rounds_to`.
void decode_into(const at::Tensor& out, const PlacedWeight& one, int64_t row, int64_t column,
                 at::ScalarType rounds_to) {
  if (const auto* groups = std::get_if<GroupWeight>(&one.weight)) {
    if (out.stride(1) == 1 || out.size(1) == 1) return decode_groups_(out, *groups, row, column, rounds_to);
  } else {
    const auto& nf4 = std::get<Nf4Weight>(one.weight);
    const bool by_columns = nf4.form().transposed;
    const at::Tensor its = by_columns ? out.t() : out;
    if (by_columns) std::swap(row, column);
    if (its.stride(1) == 1 || its.size(1) == 1) return decode_nf4_(its, nf4, row, column, rounds_to);
    if (by_columns) std::swap(row, column);
  }
  // Weights beside it are stored in the other orientation.
  const at::Tensor dense = is_transposed(one) ? at::empty({out.size(1), out.size(0)}, out.options()).t()
                                              : at::empty(out.sizes(), out.options());
  decode_into(dense, one, row, column, rounds_to);
  out.copy_(dense);
}

}  // namespace

int64_t PlacedWeight::outputs() const {
  const auto* nf4 = std::get_if<Nf4Weight>(&weight);
  return nf4 ? nf4->outputs() : std::get<GroupWeight>(weight).form().rows;
}
int64_t PlacedWeight::inputs() const {
  const auto* nf4 = std::get_if<Nf4Weight>(&weight);
  return nf4 ? nf4->inputs() : std::get<GroupWeight>(weight).form().columns;
}

PlacedMatrix::PlacedMatrix(int64_t outputs, int64_t inputs, std::vector<PlacedWeight> weights)
    : outputs_(outputs), inputs_(inputs), weights_(std::move(weights)) {
  require(outputs > 0 && inputs > 0 && !weights_.empty(), kPlaced,
          "a matrix must have outputs, inputs and at least one weight: got [", outputs, ", ", inputs, "] and ",
          weights_.size(), " weights");
  int64_t elements = 0;
  for (const PlacedWeight& one : weights_) {
    const at::Tensor& bytes =
        std::visit([](const auto& weight) -> const at::Tensor& { return weight.bytes(); }, one.weight);
    if (!options_.has_device()) options_ = bytes.options();
    require(one.row >= 0 && one.outputs() <= outputs - one.row && one.column >= 0 &&
                one.inputs() <= inputs - one.column && bytes.device() == options_.device(),
            kPlaced, "a weight must be inside of [", outputs, ", ", inputs, "], on one device: got [", one.outputs(),
            ", ", one.inputs(), "] from row ", one.row, ", column ", one.column);
    elements += one.outputs() * one.inputs();
    unit_ = std::max(unit_, slice_unit(one));
  }
  transposed_ = is_transposed(weights_.front());
  has_gaps_ = elements < outputs * inputs;
}

/// Decodes a part, rounded to `rounds_to`, into `room`, which is made or grows if it is too small. Returns a view of
/// it, [rows, columns].
at::Tensor PlacedMatrix::decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to,
                                 at::Tensor& room) const {
  if (!room.defined() || room.numel() < part.rows * part.columns)
    room = at::empty({part.rows * part.columns}, options_.dtype(type));
  const at::Tensor flat = room.narrow(0, 0, part.rows * part.columns);
  const at::Tensor values =
      transposed_ ? flat.view({part.columns, part.rows}).t() : flat.view({part.rows, part.columns});
  if (has_gaps_) values.zero_();
  for (const PlacedWeight& one : weights_) {
    const Common rows(part.row, part.rows, one.row, one.outputs()),
        columns(part.column, part.columns, one.column, one.inputs());
    if (rows.count <= 0 || columns.count <= 0) continue;
    decode_into(values.narrow(0, one.row + rows.begin - part.row, rows.count)
                    .narrow(1, one.column + columns.begin - part.column, columns.count),
                one, rows.begin, columns.begin, rounds_to);
  }
  return values;
}

// Slices begin between blocks and groups if the weights do.
DecodedSizes PlacedMatrix::sizes() const {
  return {kPlaced, outputs_, inputs_, is_for_accelerator(options_.device()), unit_};
}

at::Tensor PlacedMatrix::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  at::Tensor room;
  return multiply_decoded(x, bias, sizes(), [&](const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) {
    return decoded(part, type, rounds_to, room);
  });
}

at::Tensor PlacedMatrix::input_gradient(const at::Tensor& dy) const {
  at::Tensor room;
  return input_gradient_decoded(dy, sizes(),
                                [&](const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) {
                                  return decoded(part, type, rounds_to, room);
                                });
}

at::Tensor PlacedMatrix::dequantize(at::ScalarType type) const {
  return dequantize(type, {.rows = outputs_, .columns = inputs_});
}

at::Tensor PlacedMatrix::dequantize(at::ScalarType type, const MatrixPart& part) const {
  require(part.row >= 0 && part.rows > 0 && part.rows <= outputs_ - part.row && part.row_step == 1 &&
              part.column >= 0 && part.columns > 0 && part.columns <= inputs_ - part.column,
          kPlaced, "a part must be inside of [", outputs_, ", ", inputs_, "]: got ", part.rows, " rows from ", part.row,
          ", ", part.columns, " columns from ", part.column);
  at::Tensor room;
  return decoded(part, type, type, room);
}

}  // namespace colossal::ops
