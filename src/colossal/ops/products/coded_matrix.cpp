#include "colossal/ops/products/coded_matrix.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>

#include "colossal/base/error.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/products/decoded_products.h"
#include "colossal/ops/products/fp8.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

constexpr int64_t kInt4Inner = 2;  // tiles of 16 inputs that _weight_int4pack_mm stores side by side

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
    : outputs_((codes.check(), codes.outputs())), inputs_(codes.inputs()), group_(codes.group) {
  const at::Device device = options.device();
  if (!serves_int4(codes, options)) {
    weight_ = GroupWeight(codes).to(device);
    return;
  }
  codes_ = at::_convert_weight_to_int4pack(two_in_a_byte(codes.codes).to(device), kInt4Inner);
  for_int4_ = int4_scales_and_zeros(codes).to(device);
}

CodedMatrix::CodedMatrix(const at::Tensor& weight, const at::TensorOptions& options)
    : outputs_(weight.size(0)), inputs_(weight.size(1)) {
  const RowCodes rows = encode_rows(weight, at::kFloat8_e4m3fn);
  require(rows.scales.isfinite().all().item<bool>(), "quantization", "weights must be finite");
  codes_ = rows.codes.to(options.device()), scales_ = rows.scales.to(options.device());
}

// Values are computed in fp32 or fp64, which represent every code exactly, and rounded once to `rounds_to`.
at::Tensor CodedMatrix::decoded(const MatrixPart& part, at::ScalarType type, at::ScalarType rounds_to) const {
  if (weight_) {
    const at::Tensor values = at::empty({part.rows, part.columns}, weight_->bytes().options().dtype(type));
    decode_groups_(values, *weight_, part.row, part.column, rounds_to);
    return values;
  }
  const at::ScalarType wide = rounds_to == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor numbers = codes_.narrow(0, part.row, part.rows).narrow(1, part.column, part.columns).to(wide);
  return at::Tensor(numbers).mul_(scales_.narrow(0, part.row, part.rows).unsqueeze(-1)).to(rounds_to).to(type);
}

at::Tensor CodedMatrix::multiply(const at::Tensor& x, const at::Tensor& bias) const {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
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
  } else {
    const at::Tensor& own = weight_ ? weight_->bytes() : codes_;
    return multiply_decoded(
        x, bias, {"quantization", outputs_, inputs_, is_for_accelerator(own)},
        [&](const MatrixPart& part, auto type, auto rounds_to) { return decoded(part, type, rounds_to); });
  }
  return DecodedSizes::as_given(y, x);
}

int64_t CodedMatrix::bytes() const {
  int64_t sum = weight_ ? static_cast<int64_t>(weight_->bytes().nbytes()) : 0;
  for (const at::Tensor* part : {&codes_, &scales_, &for_int4_})
    if (part->defined()) sum += static_cast<int64_t>(part->nbytes());
  return sum;
}

}  // namespace colossal::ops
