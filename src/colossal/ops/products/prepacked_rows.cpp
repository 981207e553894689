#include "colossal/ops/products/prepacked_rows.h"

#include <ATen/ATen.h>

namespace colossal::ops {
namespace {

bool is_wide(PackedType type) { return type == PackedType::Float || type == PackedType::Fp8; }

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

int64_t bytes_of_number(PackedType type, const RowLayout& layout) {
  return is_wide(type) || layout.widened ? 4 : type == PackedType::Bf16 ? 2 : 1;
}

PrepackedKernels::LayOut lay_out_of(const PackedInputs& inputs, const RowLayout& layout,
                                    const PrepackedKernels& kernels) {
  if (is_wide(inputs.type)) return kernels.lay_out_float;
  if (inputs.are_codes()) return kernels.lay_out_codes;
  return layout.widened ? kernels.lay_out_widened : kernels.lay_out_bf16;
}

}  // namespace

PrepackedRows::PrepackedRows(const void* x, int64_t rows, bool is_bf16, const PackedInputs& inputs, float factor,
                             const PrepackedKernels& kernels)
    : inputs_(inputs),
      layout_(layout_of(inputs.type, kernels)),
      rows_(rows),
      row_bytes_(inputs.padded * bytes_of_number(inputs.type, layout_)),
      lay_out_(lay_out_of(inputs, layout_, kernels)),
      all_{.x = x,
           .type = is_bf16 ? Narrow::Bf16 : Narrow::None,
           .stride = inputs.inputs * (is_bf16 ? 2 : 4),
           .inputs = inputs.inputs,
           .padded = inputs.padded,
           .by_row = layout_.by_row,
           .group = inputs.group,
           .factor = factor} {
  constexpr int64_t kLine = 64;
  const int64_t lines = (rows_ * row_bytes_ + kLine - 1) / kLine * kLine, groups = rows_ * inputs_.groups();
  const auto size_of_group = static_cast<int64_t>(sizeof(float) + sizeof(int32_t));
  memory_ = at::empty({lines + groups * size_of_group}, at::kByte);
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
