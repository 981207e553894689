#include "colossal/ops/products/prepacked_rows.h"

#include <ATen/ATen.h>

#include <cstring>
#include <vector>

#include "colossal/ops/thread_team.h"

namespace colossal::ops {
namespace {

bool is_wide(PackedType type) { return type == PackedType::Float || type == PackedType::Fp8; }

int64_t bytes_of_number(PackedType type) { return is_wide(type) ? 4 : type == PackedType::Bf16 ? 2 : 1; }

// Transposes a row of units into a tile [units][rows]. A unit is what one lane of the kernels reads at a time.
template <class Unit>
void lay_out(const Unit* row, int64_t units, int64_t index, int64_t rows, char* tile) {
  auto* out = reinterpret_cast<Unit*>(tile) + index;
  for (int64_t k = 0; k < units; ++k) out[k * rows] = row[k];
}

}  // namespace

PrepackedRows::PrepackedRows(const at::Tensor& x, const PackedInputs& inputs, float factor,
                             const PrepackedKernels& kernels)
    : inputs_(inputs),
      rows_(x.size(0)),
      numbers_(at::empty({rows_ * inputs.padded * bytes_of_number(inputs.type)}, at::kByte)),
      scales_(at::empty({rows_ * inputs.groups()}, at::kFloat)),
      sums_(at::empty({rows_ * inputs.groups()}, at::kInt)) {
  const float* numbers = x.const_data_ptr<float>();
  ThreadTeam::of_this_thread().run(
      tiles(), [&](int64_t t) { fill(t, numbers + t * kTileRows * inputs_.inputs, factor, kernels); });
}

char* PrepackedRows::bytes_of(int64_t tile) const {
  return static_cast<char*>(numbers_.mutable_data_ptr()) +
         tile * kTileRows * inputs_.padded * bytes_of_number(inputs_.type);
}

void PrepackedRows::fill(int64_t tile, const float* x, float factor, const PrepackedKernels& kernels) {
  const int64_t rows = rows_of(tile), groups = inputs_.groups(), padded = inputs_.padded;
  char* out = bytes_of(tile);
  float* scales = scales_.mutable_data_ptr<float>() + tile * kTileRows * groups;
  int32_t* sums = sums_.mutable_data_ptr<int32_t>() + tile * kTileRows * groups;
  std::vector<float> row(padded), row_scales(groups);
  std::vector<int32_t> row_sums(groups);
  std::vector<uint32_t> lanes(padded);  // lanes of two bf16 elements or four codes
  for (int64_t r = 0; r < rows; ++r) {
    const float* numbers = x + r * inputs_.inputs;
    if (is_wide(inputs_.type)) {
      lay_out(numbers, padded, r, rows, out);
      continue;
    }
    std::copy_n(numbers, inputs_.inputs, row.begin());
    if (inputs_.type == PackedType::Bf16) {
      for (int64_t k = 0; k < padded; ++k) reinterpret_cast<uint16_t*>(lanes.data())[k] = c10::BFloat16(row[k]).x;
      lay_out(lanes.data(), padded / 2, r, rows, out);
      continue;
    }
    kernels.encode_row(row.data(), padded, inputs_.group, reinterpret_cast<int8_t*>(lanes.data()), row_scales.data(),
                       row_sums.data());
    lay_out(lanes.data(), padded / 4, r, rows, out);
    for (float& scale : row_scales) scale *= factor;
    lay_out(row_scales.data(), groups, r, rows, reinterpret_cast<char*>(scales));
    lay_out(row_sums.data(), groups, r, rows, reinterpret_cast<char*>(sums));
  }
}

void PrepackedRows::place(int64_t tile, PanelProduct& product) const {
  const int64_t first = tile * kTileRows * inputs_.groups();
  product.tile = bytes_of(tile);
  product.scales = scales_.const_data_ptr<float>() + first;
  product.sums = sums_.const_data_ptr<int32_t>() + first;
}

}  // namespace colossal::ops
