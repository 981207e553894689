#include "colossal/ops/products/prepacked_rows.h"

#include <ATen/ATen.h>

#include <cstring>
#include <vector>

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

// Writes a row of units into a block: [units][rows], or [rows][units] by row. A unit is what one lane of the kernels
// reads at a time.
template <class Unit>
void lay_out(const Unit* row, int64_t units, int64_t index, int64_t rows, bool by_row, char* block) {
  auto* out = reinterpret_cast<Unit*>(block) + (by_row ? index * units : index);
  const int64_t pitch = by_row ? 1 : rows;
  for (int64_t k = 0; k < units; ++k) out[k * pitch] = row[k];
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
  const float* numbers = x.const_data_ptr<float>();
  ThreadTeam::of_this_thread().run(
      blocks(), [&](int64_t b) { fill(b, numbers + first_of(b) * inputs_.inputs, factor, kernels); });
}

char* PrepackedRows::bytes_of(int64_t block) const {
  return static_cast<char*>(numbers_.mutable_data_ptr()) +
         first_of(block) * inputs_.padded * bytes_of_number(inputs_.type, layout_);
}

void PrepackedRows::fill(int64_t block, const float* x, float factor, const PrepackedKernels& kernels) {
  const int64_t rows = rows_of(block), groups = inputs_.groups(), padded = inputs_.padded;
  const bool by_row = layout_.by_row;
  char* out = bytes_of(block);
  float* scales = scales_.mutable_data_ptr<float>() + first_of(block) * groups;
  int32_t* sums = sums_.mutable_data_ptr<int32_t>() + first_of(block) * groups;
  std::vector<float> row(padded), row_scales(groups);
  std::vector<int32_t> row_sums(groups);
  std::vector<uint32_t> lanes(padded);  // lanes of two bf16 elements or four codes
  for (int64_t r = 0; r < rows; ++r) {
    const float* numbers = x + r * inputs_.inputs;
    if (is_wide(inputs_.type)) {
      lay_out(numbers, padded, r, rows, by_row, out);
      continue;
    }
    std::copy_n(numbers, inputs_.inputs, row.begin());
    if (layout_.widened) {
      for (float& number : row) number = c10::BFloat16(number);
      lay_out(row.data(), padded, r, rows, by_row, out);
      continue;
    }
    if (inputs_.type == PackedType::Bf16) {
      for (int64_t k = 0; k < padded; ++k) reinterpret_cast<uint16_t*>(lanes.data())[k] = c10::BFloat16(row[k]).x;
      lay_out(lanes.data(), padded / 2, r, rows, by_row, out);
      continue;
    }
    kernels.encode_row(row.data(), padded, inputs_.group, reinterpret_cast<int8_t*>(lanes.data()), row_scales.data(),
                       row_sums.data());
    lay_out(lanes.data(), padded / 4, r, rows, by_row, out);
    for (float& scale : row_scales) scale *= factor;
    lay_out(row_scales.data(), groups, r, rows, false, reinterpret_cast<char*>(scales));
    lay_out(row_sums.data(), groups, r, rows, false, reinterpret_cast<char*>(sums));
  }
}

void PrepackedRows::place(int64_t block, PanelProduct& product) const {
  const int64_t first = first_of(block) * inputs_.groups();
  product.block = bytes_of(block);
  product.scales = scales_.const_data_ptr<float>() + first;
  product.sums = sums_.const_data_ptr<int32_t>() + first;
}

}  // namespace colossal::ops
