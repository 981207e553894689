#include "colossal/ops/products/prepacked_rows.h"

#include <ATen/ATen.h>

namespace colossal::ops {
namespace {

/// Element types in which blocks store rows.
enum class Stored { Float, Widened, Bf16, Codes };

const RowLayout& layout_of(PackedType type, const PrepackedKernels& kernels) {
  switch (type) {
    case PackedType::Float:
      return kernels.float_rows;
    case PackedType::Bf16:
      return kernels.bf16_rows;
    case PackedType::Fp8:
      return kernels.fp8_rows;
    default:
      return kernels.code_rows;
  }
}

Stored stored_as(const PackedInputs& inputs, const PrepackedKernels& kernels) {
  switch (inputs.type) {
    case PackedType::Float:
      return Stored::Float;
    case PackedType::Bf16:
      return kernels.bf16_rows.widened ? Stored::Widened : Stored::Bf16;
    case PackedType::Fp8:
      return inputs.is_bf16 && kernels.multiply_fp8_bf16 ? Stored::Bf16 : Stored::Float;
    default:
      return Stored::Codes;
  }
}

int64_t bytes_of_number(Stored stored) { return stored == Stored::Codes ? 1 : stored == Stored::Bf16 ? 2 : 4; }

PrepackedKernels::LayOut lay_out_of(Stored stored, const PrepackedKernels& kernels) {
  switch (stored) {
    case Stored::Float:
      return kernels.lay_out_float;
    case Stored::Widened:
      return kernels.lay_out_widened;
    case Stored::Bf16:
      return kernels.lay_out_bf16;
    default:
      return kernels.lay_out_codes;
  }
}

bool is_fp8_in_fp32(const PackedInputs& inputs, const PrepackedKernels& kernels) {
  return inputs.type == PackedType::Fp8 && stored_as(inputs, kernels) == Stored::Float;
}

int64_t bytes_of_lines(int64_t bytes) {
  constexpr int64_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

int64_t PrepackedRows::bytes_of(int64_t rows, const PackedInputs& inputs, const PrepackedKernels& kernels) {
  constexpr auto kOfGroup = static_cast<int64_t>(sizeof(float) + sizeof(int32_t));
  return bytes_of_lines(rows * inputs.padded * bytes_of_number(stored_as(inputs, kernels))) +
         rows * inputs.groups() * kOfGroup;
}

PrepackedRows::PrepackedRows(const void* x, int64_t rows, const PackedInputs& inputs, float factor,
                             const PrepackedKernels& kernels)
    : inputs_(inputs),
      layout_(layout_of(inputs.type, kernels)),
      rows_(rows),
      row_bytes_(inputs.padded * bytes_of_number(stored_as(inputs, kernels))),
      lay_out_(lay_out_of(stored_as(inputs, kernels), kernels)),
      all_{.x = x,
           .type = inputs.is_bf16 ? Narrow::Bf16 : Narrow::None,
           .stride = inputs.inputs * (inputs.is_bf16 ? 2 : 4),
           .inputs = inputs.inputs,
           .padded = inputs.padded,
           .by_row = layout_.by_row,
           .group = inputs.group,
           .factor = is_fp8_in_fp32(inputs, kernels) ? kFp8RowFactor : factor} {
  const int64_t lines = bytes_of_lines(rows_ * row_bytes_), groups = rows_ * inputs_.groups();
  memory_ = at::empty({bytes_of(rows, inputs, kernels)}, at::kByte);
  numbers_ = static_cast<char*>(memory_.mutable_data_ptr());
  scales_ = reinterpret_cast<float*>(numbers_ + lines);
  sums_ = reinterpret_cast<int32_t*>(scales_ + groups);
}

void PrepackedRows::lay_out(int64_t block) const {
  const int64_t first = first_of(block);
  RowsToLayOut rows = all_;
  rows.x = static_cast<const char*>(all_.x) + first * all_.stride;
  rows.rows = rows.pitch = rows_of(block);
  rows.out = numbers_ + first * row_bytes_;
  rows.scales = scales_ + first * inputs_.groups();
  rows.sums = sums_ + first * inputs_.groups();
  lay_out_(rows);
}

void PrepackedRows::place(int64_t block, PanelProduct& product) const {
  const int64_t first = first_of(block);
  product.block = numbers_ + first * row_bytes_;
  product.scales = scales_ + first * inputs_.groups();
  product.sums = sums_ + first * inputs_.groups();
}

}  // namespace colossal::ops
