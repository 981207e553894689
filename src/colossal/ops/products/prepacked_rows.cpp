#include "colossal/ops/products/prepacked_rows.h"

#include <ATen/ATen.h>

#include "colossal/ops/thread_team.h"

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

PrepackedRows::PrepackedRows(const at::Tensor& x, const PackedInputs& inputs, float factor,
                             const PrepackedKernels& kernels)
    : inputs_(inputs),
      layout_(layout_of(inputs.type, kernels)),
      rows_(x.size(0)),
      numbers_(at::empty({rows_ * inputs.padded * bytes_of_number(inputs.type, layout_)}, at::kByte)),
      scales_(at::empty({rows_ * inputs.groups()}, at::kFloat)),
      sums_(at::empty({rows_ * inputs.groups()}, at::kInt)) {
  const auto lay_out = lay_out_of(inputs_, layout_, kernels);
  const RowsToLayOut all{.x = x.const_data_ptr(),
                         .type = x.scalar_type() == at::kBFloat16 ? Narrow::Bf16 : Narrow::None,
                         .stride = inputs_.inputs * static_cast<int64_t>(x.itemsize()),
                         .inputs = inputs_.inputs,
                         .padded = inputs_.padded,
                         .by_row = layout_.by_row,
                         .group = inputs_.group,
                         .factor = factor};
  ThreadTeam::of_this_thread().run(blocks(), [&](int64_t b) {
    RowsToLayOut rows = all;
    rows.x = static_cast<const char*>(all.x) + first_of(b) * all.stride;
    rows.rows = rows.pitch = rows_of(b);
    rows.out = bytes_of(b);
    rows.scales = scales_.mutable_data_ptr<float>() + first_of(b) * inputs_.groups();
    rows.sums = sums_.mutable_data_ptr<int32_t>() + first_of(b) * inputs_.groups();
    lay_out(rows);
  });
}

char* PrepackedRows::bytes_of(int64_t block) const {
  return static_cast<char*>(numbers_.mutable_data_ptr()) +
         first_of(block) * inputs_.padded * bytes_of_number(inputs_.type, layout_);
}

void PrepackedRows::place(int64_t block, PanelProduct& product) const {
  const int64_t first = first_of(block) * inputs_.groups();
  product.block = bytes_of(block);
  product.scales = scales_.const_data_ptr<float>() + first;
  product.sums = sums_.const_data_ptr<int32_t>() + first;
}

}  // namespace colossal::ops
