#include "colossal/ops/products/coded_matrix.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/products/fp8.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

constexpr int64_t kInt4Inner = 2;  // tiles of 16 inputs that _weight_int4pack_mm stores side by side

/// Packs 4-bit codes, two per byte, the first in the upper half.
at::Tensor two_in_a_byte(const at::Tensor& codes) {
  const at::Tensor pairs = codes.unflatten(1, {-1, 2});
  return pairs.select(2, 0).bitwise_left_shift(4).bitwise_or(pairs.select(2, 1));
}

// Returns true if _weight_int4pack_mm supports the codes. See: checks of _weight_int4pack_mm_cuda in PyTorch's
// aten/src/ATen/native/cuda/int4mm.cu.
bool serves_int4(const GroupCodes& codes, const at::TensorOptions& options) {
  constexpr std::array kGroups{32, 64, 128, 256};
  const bool has_group = std::find(kGroups.begin(), kGroups.end(), codes.group) != kGroups.end();
  return codes.bits == 4 && has_group && codes.inputs() % codes.group == 0 && codes.outputs() % 8 == 0 &&
         c10::typeMetaToScalarType(options.dtype()) == at::kBFloat16 &&
         runs(DeviceOperator::Int4Product, options.device());
}

}  // namespace

at::Tensor int4_scales_and_zeros(const GroupCodes& codes) {
  const at::Tensor middle = codes.minima.defined() ? codes.minima + 8 * codes.scales : at::zeros_like(codes.scales);
  return at::stack({codes.scales.t(), middle.t()}, -1).to(at::kBFloat16).contiguous();
}

CodedMatrix::CodedMatrix(const GroupCodes& codes, const at::TensorOptions& options)
    : inputs_((codes.check(), codes.inputs())), group_(codes.group), bits_(codes.bits) {
  const at::Device device = options.device();
  const at::Tensor whole = at::constant_pad_nd(codes.codes, {0, codes.groups() * group_ - inputs_});
  codes_ = (bits_ == 4 ? two_in_a_byte(whole) : whole).to(device);
  if (serves_int4(codes, options)) {
    codes_ = at::_convert_weight_to_int4pack(codes_, kInt4Inner);
    for_int4_ = int4_scales_and_zeros(codes).to(device);
    return;
  }
  const double middle = bits_ == 4 ? 8 : 128;
  scales_ = codes.scales.to(device);
  minima_ = (codes.minima.defined() ? codes.minima : codes.scales * -middle).to(device);
}

CodedMatrix::CodedMatrix(const at::Tensor& weight, const at::TensorOptions& options)
    : inputs_(weight.size(1)), bits_(8) {
  const RowCodes rows = encode_rows(weight, at::kFloat8_e4m3fn);
  require(rows.scales.isfinite().all().item<bool>(), "quantization", "weights must be finite");
  codes_ = rows.codes.to(options.device()), scales_ = rows.scales.to(options.device());
}

// Values are computed in fp32 or fp64, which represent every code exactly, and rounded once to `type`.
at::Tensor CodedMatrix::values(at::ScalarType type) const {
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  if (group_ == 0) return codes_.to(wide).mul_(scales_.unsqueeze(-1)).to(type);
  const at::Tensor codes =
      bits_ == 8 ? codes_ : at::stack({codes_.bitwise_right_shift(4), codes_.bitwise_and(15)}, -1).flatten(1);
  const at::Tensor numbers = codes.to(wide).unflatten(1, {-1, group_});
  return numbers.mul_(scales_.unsqueeze(-1)).add_(minima_.unsqueeze(-1)).flatten(1).narrow(1, 0, inputs_).to(type);
}

at::Tensor CodedMatrix::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  const at::Tensor rows = x.reshape({-1, inputs_});
  at::Tensor y;
  if (for_int4_.defined()) {
    y = at::_weight_int4pack_mm(rows.contiguous(), codes_, group_, for_int4_);
    tensor::announce_product(rows.size(0), y.size(1), rows.size(1), rows.scalar_type());
    if (bias.defined()) y.add_(bias);
  } else if (group_ == 0 && multiplies_scaled(x, inputs_, codes_.size(0))) {
    const RowCodes own = encode_rows(rows, at::kFloat8_e4m3fn);
    const at::Tensor one = at::ones({}, own.scales.options());
    y = scaled_nt({own.codes, one}, {codes_, one}, {}, at::kFloat);
    y.mul_(own.scales.unsqueeze(-1)).mul_(scales_);
    if (bias.defined()) y.add_(bias);
    y = y.to(x.scalar_type());
  } else {
    y = at::linear(rows, values(x.scalar_type()), bias);
    tensor::announce_product(rows.size(0), y.size(1), rows.size(1), rows.scalar_type());
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = y.size(1);
  return y.view(shape);
}

int64_t CodedMatrix::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor* part : {&codes_, &scales_, &minima_, &for_int4_})
    if (part->defined()) sum += static_cast<int64_t>(part->nbytes());
  return sum;
}

}  // namespace colossal::ops
