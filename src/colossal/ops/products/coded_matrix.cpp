#include "colossal/ops/products/coded_matrix.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/decoded_products.h"
#include "colossal/ops/products/fp8.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/tensor/device_meant.h"
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

constexpr int64_t kDecodedAtOnce = int64_t{1} << 15;  // elements that are worth a thread

/// Rows of codes with groups, on the CPU.
struct CodedRows {
  const uint8_t* codes;          ///< [rows, pitch]
  const float *scales, *minima;  ///< [rows, groups]; minima null = none
  int64_t bits, group, pitch, groups;
};

/// Values of a byte. Looking them up is faster than converting them.
constexpr auto kByteValues = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[static_cast<size_t>(code)] = static_cast<float>(code);
  return values;
}();

/// Decodes columns that begin and end between groups, or at the end, into `to` [rows, columns]. Values are computed as
/// Wide and rounded to Rounded.
template <class Wide, class Rounded, class To>
void decode_rows(const CodedRows& from, int64_t rows, int64_t column, int64_t columns, To* to) {
  const auto rounded = [](Wide value) { return static_cast<To>(static_cast<Rounded>(value)); };
  const auto decode_row = [&](int64_t row) {
    const uint8_t* code = from.codes + row * from.pitch + column * from.bits / 8;
    To* out = to + row * columns;
    for (int64_t k = 0; k < columns; k += from.group) {
      const int64_t count = std::min(from.group, columns - k), at = row * from.groups + (column + k) / from.group;
      const auto scale = static_cast<Wide>(from.scales[at]);
      const auto minimum = from.minima ? static_cast<Wide>(from.minima[at]) : Wide{0};
      const auto middle = static_cast<Wide>(from.minima ? 0 : from.bits == 4 ? 8 : 128);
      if (from.bits == 8) {
        for (int64_t i = 0; i < count; ++i)
          out[k + i] = rounded((static_cast<Wide>(kByteValues[code[k + i]]) - middle) * scale + minimum);
        continue;
      }
      To level[16];
      for (int c = 0; c < 16; ++c) level[c] = rounded((static_cast<Wide>(c) - middle) * scale + minimum);
      const uint8_t* pair = code + k / 2;
      for (int64_t i = 0; i + 1 < count; i += 2) {
        out[k + i] = level[pair[i / 2] >> 4];
        out[k + i + 1] = level[pair[i / 2] & 15];
      }
      if (count % 2 != 0) out[k + count - 1] = level[pair[count / 2] >> 4];
    }
  };
  parallel_for(0, rows, std::max<int64_t>(1, kDecodedAtOnce / columns), [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) decode_row(row);
  });
}

/// Decodes into `to`, whose dtype is `rounds_to`, or a wider one that holds the rounded values.
void decode_into(const at::Tensor& to, const CodedRows& from, int64_t column, at::ScalarType rounds_to) {
  const int64_t rows = to.size(0), columns = to.size(1);
  const bool is_float = to.scalar_type() == at::kFloat;
  switch (rounds_to) {
    case at::kDouble:
      return decode_rows<double, double>(from, rows, column, columns, to.mutable_data_ptr<double>());
    case at::kFloat:
      return decode_rows<float, float>(from, rows, column, columns, to.mutable_data_ptr<float>());
    case at::kBFloat16:
      if (is_float) return decode_rows<float, at::BFloat16>(from, rows, column, columns, to.mutable_data_ptr<float>());
      return decode_rows<float, at::BFloat16>(from, rows, column, columns, to.mutable_data_ptr<at::BFloat16>());
    case at::kHalf:
      if (is_float) return decode_rows<float, at::Half>(from, rows, column, columns, to.mutable_data_ptr<float>());
      return decode_rows<float, at::Half>(from, rows, column, columns, to.mutable_data_ptr<at::Half>());
    default:
      throw Error("quantization", concat("codes must be decoded to fp64, fp32, bf16 or fp16: got ", rounds_to));
  }
}

/// Slices begin between groups.
DecodedSizes decoded_sizes(int64_t outputs, int64_t inputs, int64_t group, const at::Tensor& codes) {
  return {"quantization", outputs, inputs, is_for_accelerator(codes), std::max<int64_t>(1, group)};
}

}  // namespace

at::Tensor int4_scales_and_zeros(const GroupCodes& codes) {
  const at::Tensor middle = codes.minima.defined() ? codes.minima + 8 * codes.scales : at::zeros_like(codes.scales);
  return at::stack({codes.scales.t(), middle.t()}, -1).to(at::kBFloat16).contiguous();
}

CodedMatrix::CodedMatrix(const GroupCodes& codes, const at::TensorOptions& options, bool decodes)
    : outputs_((codes.check(), codes.outputs())), inputs_(codes.inputs()), group_(codes.group), bits_(codes.bits) {
  const at::Device device = options.device();
  const at::Tensor whole = at::constant_pad_nd(codes.codes, {0, codes.groups() * group_ - inputs_});
  codes_ = (bits_ == 4 ? two_in_a_byte(whole) : whole).to(device);
  if (!decodes && serves_int4(codes, options)) {
    codes_ = at::_convert_weight_to_int4pack(codes_, kInt4Inner);
    for_int4_ = int4_scales_and_zeros(codes).to(device);
    return;
  }
  scales_ = codes.scales.contiguous().to(device);
  if (codes.minima.defined()) minima_ = codes.minima.contiguous().to(device);
}

CodedMatrix::CodedMatrix(const at::Tensor& weight, const at::TensorOptions& options)
    : outputs_(weight.size(0)), inputs_(weight.size(1)) {
  const RowCodes rows = encode_rows(weight, at::kFloat8_e4m3fn);
  require(rows.scales.isfinite().all().item<bool>(), "quantization", "weights must be finite");
  codes_ = rows.codes.to(options.device()), scales_ = rows.scales.to(options.device());
}

CodedMatrix CodedMatrix::on_meta(int64_t outputs, int64_t inputs, int64_t bits, int64_t group, bool minima) {
  CodedMatrix matrix;
  matrix.outputs_ = outputs, matrix.inputs_ = inputs, matrix.bits_ = bits, matrix.group_ = group;
  const int64_t groups = (inputs + group - 1) / group;
  const auto options = at::TensorOptions().device(at::kMeta);
  matrix.codes_ = at::empty({outputs, groups * group * bits / 8}, options.dtype(at::kByte));
  matrix.scales_ = at::empty({outputs, groups}, options.dtype(at::kFloat));
  if (minima) matrix.minima_ = at::empty_like(matrix.scales_);
  return matrix;
}

void CodedMatrix::check_decodes() const {
  require(!for_int4_.defined(), "quantization",
          "codes in the layout of an operator cannot be decoded: got a matrix that was made without `decodes`");
}

// Columns begin and end between groups, or at the end of the matrix. Values are computed in fp32 or fp64, which
// represent every code exactly, and rounded once to `rounds_to`.
at::Tensor CodedMatrix::decoded(int64_t row, int64_t rows, int64_t column, int64_t columns, at::ScalarType rounds_to,
                                at::ScalarType type) const {
  const at::ScalarType wide = rounds_to == at::kDouble ? at::kDouble : at::kFloat;
  const auto as_wanted = [&](const at::Tensor& values) { return values.to(rounds_to).to(type); };
  if (group_ == 0)
    return as_wanted(codes_.narrow(0, row, rows)
                         .narrow(1, column, columns)
                         .to(wide)
                         .mul_(scales_.narrow(0, row, rows).unsqueeze(-1)));
  if (codes_.is_meta() && tensor::is_for_cpu(codes_)) return at::empty({rows, columns}, codes_.options().dtype(type));
  if (codes_.is_cpu()) {
    const CodedRows from{
        .codes = codes_.const_data_ptr<uint8_t>() + row * codes_.size(1),
        .scales = scales_.const_data_ptr<float>() + row * scales_.size(1),
        .minima = minima_.defined() ? minima_.const_data_ptr<float>() + row * scales_.size(1) : nullptr,
        .bits = bits_,
        .group = group_,
        .pitch = codes_.size(1),
        .groups = scales_.size(1)};
    const at::Tensor values = at::empty({rows, columns}, codes_.options().dtype(type));
    decode_into(values, from, column, rounds_to);
    return values;
  }
  const int64_t first = column / group_, groups = (column + columns + group_ - 1) / group_ - first;
  const at::Tensor own = codes_.narrow(0, row, rows).narrow(1, first * group_ * bits_ / 8, groups * group_ * bits_ / 8);
  const at::Tensor codes =
      bits_ == 8 ? own : at::stack({own.bitwise_right_shift(4), own.bitwise_and(15)}, -1).flatten(1);
  const auto of_groups = [&](const at::Tensor& all) {
    return all.narrow(0, row, rows).narrow(1, first, groups).unsqueeze(-1);
  };
  at::Tensor numbers = codes.to(wide).unflatten(1, {-1, group_});
  if (!minima_.defined()) numbers.sub_(bits_ == 4 ? 8 : 128);
  numbers.mul_(of_groups(scales_));
  if (minima_.defined()) numbers.add_(of_groups(minima_));
  return as_wanted(numbers.flatten(1).narrow(1, 0, columns));
}

at::Tensor CodedMatrix::rows(int64_t first, int64_t count, at::ScalarType type) const {
  check_decodes();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return decoded(first, count, 0, inputs_, type, type);
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
    return multiply_decoded(x, bias, decoded_sizes(outputs_, inputs_, group_, codes_),
                            [&](const MatrixPart& part, auto type, auto rounds_to) {
                              return decoded(part.row, part.rows, part.column, part.columns, rounds_to, type);
                            });
  }
  return DecodedSizes::as_given(y, x);
}

at::Tensor CodedMatrix::input_gradient(const at::Tensor& dy) const {
  check_decodes();
  const int64_t outputs = dy.size(-1);
  require(outputs <= outputs_, "quantization", "dy must have at most ", outputs_, " outputs: got ", outputs);
  return input_gradient_decoded(dy, decoded_sizes(outputs, inputs_, group_, codes_),
                                [&](const MatrixPart& part, auto type, auto rounds_to) {
                                  return decoded(part.row, part.rows, part.column, part.columns, rounds_to, type);
                                });
}

int64_t CodedMatrix::bytes() const {
  int64_t sum = 0;
  for (const at::Tensor* part : {&codes_, &scales_, &minima_, &for_int4_})
    if (part->defined()) sum += static_cast<int64_t>(part->nbytes());
  return sum;
}

}  // namespace colossal::ops
