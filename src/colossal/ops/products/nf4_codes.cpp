#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/nf4_layout.h"
#include "colossal/ops/products/nf4_levels.h"
#include "colossal/ops/products/nf4_weight.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

constexpr int64_t kNf4Grain = 32768;  // elements per thread

at::Tensor levels_on(at::Device device) { return at::tensor(at::ArrayRef<float>(kNf4Levels), at::kFloat).to(device); }

/// Returns the factor by which elements of a block are scaled.
at::Tensor factor_of(const at::Tensor& absmax) { return absmax.clamp_min(kNf4MinAbsmax).reciprocal(); }

/// Returns `values` [n] as blocks of `size`, padded with zeros.
at::Tensor in_blocks(const at::Tensor& values, int64_t size) {
  const int64_t missing = (size - values.numel() % size) % size;
  return at::constant_pad_nd(values, {0, missing}).view({-1, size});
}

/// Stores the largest magnitudes of the blocks of a whole weight.
void store_absmax(const Nf4Weight& weight, const at::Tensor& absmax) {
  require(absmax.isfinite().all().item<bool>(), "quantization", "weights must be finite to be quantized to nf4");
  if (!weight.form().double_quantized) {
    weight.stored_absmax().copy_(absmax);
    return;
  }
  const at::Tensor mean = absmax.mean(), centred = in_blocks(absmax - mean, kNf4NestedBlock);
  const at::Tensor most = centred.abs().amax(1);
  const at::Tensor values = at::tensor(nf4_nested_values(), at::kFloat).to(absmax.device());
  const at::Tensor borders = (values.narrow(0, 0, 255) + values.narrow(0, 1, 255)) / 2;
  const at::Tensor codes = at::bucketize(centred / most.clamp_min(kNf4MinAbsmax).unsqueeze(1), borders);
  weight.stored_absmax().copy_(codes.flatten().narrow(0, 0, absmax.numel()));
  weight.nested_absmax().copy_(most);
  weight.nested_values().copy_(values);
  weight.nested_mean().copy_(mean);
}

Nf4Weight empty_weight(const at::Tensor& matrix, const Nf4Options& options) {
  require(matrix.dim() == 2 && matrix.numel() > 0 && matrix.is_floating_point(), "nf4",
          "a weight must be a matrix of floating-point numbers: got ", matrix.scalar_type(), " ", matrix.sizes());
  const Nf4Form form = Nf4Form::whole(matrix.size(0), matrix.size(1), options.double_quantized, options.transposed);
  return {form, at::zeros({form.bytes()}, at::TensorOptions(matrix.device()).dtype(at::kByte))};
}

/// Writes largest magnitudes of `count` blocks from `block` on to `out`, rounded as Nf4Weight::absmax() does.
class AbsmaxReader {
 public:
  explicit AbsmaxReader(const Nf4Weight& weight) : places_(weight.form()) {
    const at::Tensor stored = weight.stored_absmax();
    if (!weight.form().double_quantized) {
      plain_ = pointer<float>(stored);
      return;
    }
    codes_ = pointer<uint8_t>(stored);
    values_ = pointer<float>(weight.nested_values());
    nested_ = pointer<float>(weight.nested_absmax());
    mean_ = *pointer<float>(weight.nested_mean());
  }
  /// Returns those of the blocks of `count` elements of a row from `column` on. `room` keeps them until the next call.
  const float* read(int64_t row, int64_t column, int64_t count, std::vector<float>& room) const {
    const int64_t first = places_.block(row, column);
    if (plain_) return plain_ + first;
    const int64_t in_folder = places_.index(row, column) / kNf4Block;
    const int64_t blocks = nf4_blocks_of(places_.index(row, column), count);
    room.resize(static_cast<size_t>(blocks));
    for (int64_t i = 0; i < blocks; ++i)
      room[i] = values_[codes_[first + i]] * nested_[(in_folder + i) / kNf4NestedBlock - places_.nested_first];
    // A loop of its own, so that no compiler fuses the product with the sum.
    for (float& absmax : room) absmax += mean_;
    return room.data();
  }

 private:
  Nf4Places places_;
  const float *plain_ = nullptr, *values_ = nullptr, *nested_ = nullptr;
  const uint8_t* codes_ = nullptr;
  float mean_ = 0;
};

void check_block(const at::Tensor& out, const Nf4Weight& weight, int64_t row, int64_t column) {
  const Nf4Form& form = weight.form();
  require(out.dim() == 2 && row >= 0 && column >= 0 && out.size(0) <= form.rows - row &&
              out.size(1) <= form.columns - column,
          "nf4", "a part must be inside of [", form.rows, ", ", form.columns, "]: got ", out.sizes(), " from ", row,
          ", ", column);
  require(
      out.is_floating_point() && out.device() == weight.bytes().device() && (out.stride(1) == 1 || out.size(1) == 1),
      "nf4", "the result must be floating-point numbers with dense rows on the device of the weight: got ",
      out.scalar_type(), " on ", out.device());
}

/// Decodes a part whose rows, and those of the matrix, begin and end between blocks. Returns fp32.
at::Tensor decode_whole_blocks(const Nf4Weight& weight, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const auto blocks_of_part = [&](const at::Tensor& of_blocks) {
    const at::Tensor by_row = of_blocks.unflatten(0, {weight.form().rows, -1});
    return by_row.narrow(0, row, rows).narrow(1, column / kNf4Block, columns / kNf4Block);
  };
  const at::Tensor bytes = blocks_of_part(weight.codes());
  const at::Tensor codes = at::stack({bytes.bitwise_right_shift(4), bytes.bitwise_and(15)}, -1);
  const at::Tensor numbers = levels_on(bytes.device()).index_select(0, codes.flatten().to(at::kInt));
  return numbers.view({rows, columns / kNf4Block, kNf4Block})
      .mul_(blocks_of_part(weight.absmax()).unsqueeze(-1))
      .view({rows, columns});
}

/// Decodes any part, element by element. Returns fp32.
at::Tensor decode_elements(const Nf4Weight& weight, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const Nf4Places places(weight.form());
  const auto whole_numbers = weight.bytes().options().dtype(at::kLong);
  const at::Tensor of_rows = at::arange(row, row + rows, whole_numbers).unsqueeze(1);
  const at::Tensor starts = of_rows * places.stride + places.first;
  const at::Tensor index = (starts + at::arange(column, column + columns, whole_numbers)).flatten();
  const at::Tensor base = places.pitch == 0 ? at::full_like(starts, places.first / kNf4Block)
                                            : starts.floor_divide(kNf4Block) - of_rows * places.pitch;
  const at::Tensor block = index.floor_divide(kNf4Block) - base.expand({rows, columns}).flatten();
  const at::Tensor byte = block * kNf4BlockBytes + index.remainder(kNf4Block).floor_divide(2);
  const at::Tensor both = weight.codes().flatten().index_select(0, byte);
  const at::Tensor codes =
      at::where(index.remainder(2) == 0, both.bitwise_right_shift(4), both.bitwise_and(15)).to(at::kLong);
  return levels_on(both.device())
      .index_select(0, codes)
      .mul_(weight.absmax().index_select(0, block))
      .view({rows, columns});
}

}  // namespace

const std::vector<float>& nf4_nested_values() {
  static const std::vector<float> values = [] {
    std::vector<float> all{0, 1};
    for (int decade = 0; decade < 7; ++decade) {
      const int parts = 1 << decade;
      const float step = (1 - 0.1f) / static_cast<float>(parts), unit = static_cast<float>(std::pow(10.0, decade - 6));
      // The bounds of the parts as at::linspace rounds them on processors that fuse products and sums.
      const auto bound = [&](int i) {
        return static_cast<float>(i < (parts + 1) / 2 ? static_cast<double>(0.1f) + static_cast<double>(step) * i
                                                      : 1 - static_cast<double>(step) * (parts - i));
      };
      for (int i = 0; i < parts; ++i) {
        const float middle = (bound(i) + bound(i + 1)) / 2 * unit;
        all.push_back(middle), all.push_back(-middle);
      }
    }
    std::sort(all.begin(), all.end());
    return all;
  }();
  return values;
}

Nf4Weight quantize_nf4_reference(const at::Tensor& matrix, const Nf4Options& options) {
  const Nf4Weight weight = empty_weight(matrix, options);
  if (matrix.is_meta()) return weight;
  const at::Tensor blocks = in_blocks(matrix.to(at::kFloat).flatten(), kNf4Block), absmax = blocks.abs().amax(1);
  const at::Tensor borders = at::tensor(at::ArrayRef<float>(kNf4Borders.of), at::kFloat).to(matrix.device());
  const at::Tensor codes = at::bucketize(blocks * factor_of(absmax).unsqueeze(1), borders).to(at::kByte);
  const at::Tensor pairs = codes.unflatten(1, {-1, 2});
  weight.codes().copy_(pairs.select(2, 0).bitwise_left_shift(4).bitwise_or(pairs.select(2, 1)));
  store_absmax(weight, absmax);
  return weight;
}

Nf4Weight quantize_nf4(const at::Tensor& matrix, const Nf4Options& options) {
  if (!matrix.is_cpu()) return quantize_nf4_reference(matrix, options);
  const Nf4Weight weight = empty_weight(matrix, options);
  const at::Tensor flat = matrix.detach().contiguous().flatten(), codes = weight.codes();
  const at::Tensor absmax = at::empty({codes.size(0)}, at::kFloat);
  const int64_t n = flat.numel();
  const auto encode = kernels<float>().encode_nf4;
  static_assert(kSliceElements % kNf4Block == 0);
  for (int64_t first = 0; first < n; first += kSliceElements) {
    const int64_t size = std::min(kSliceElements, n - first), block = first / kNf4Block;
    const at::Tensor values = flat.narrow(0, first, size).to(at::kFloat);
    const tensor::KernelBytes bytes({flat.narrow(0, first, size)}, {codes.narrow(0, block, nf4_blocks_of(0, size))});
    const auto* from = values.const_data_ptr<float>();
    parallel_for(0, nf4_blocks_of(0, size), kNf4Grain / kNf4Block, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        pointer<float>(absmax)[block + b] = encode(from + b * kNf4Block, std::min(kNf4Block, size - b * kNf4Block),
                                                   pointer<uint8_t>(codes) + (block + b) * kNf4BlockBytes);
    });
  }
  store_absmax(weight, absmax);
  return weight;
}

void decode_nf4_reference_(const at::Tensor& out, const Nf4Weight& weight, int64_t row, int64_t column,
                           at::ScalarType rounds_to) {
  check_block(out, weight, row, column);
  if (out.numel() == 0) return;
  const Nf4Form& form = weight.form();
  const int64_t rows = out.size(0), columns = out.size(1);
  if (out.is_meta()) {  // LibTorch has no index_select there; codes and numbers take memory at the same time
    const at::Tensor codes = at::empty({rows, columns}, out.options().dtype(at::kInt)),
                     numbers = at::empty({rows, columns}, out.options().dtype(at::kFloat));
    const tensor::KernelBytes bytes({codes}, {numbers, out});
    return;
  }
  const bool has_whole_blocks = (form.first | form.stride | form.columns | column | columns) % kNf4Block == 0;
  const at::Tensor numbers = has_whole_blocks ? decode_whole_blocks(weight, row, rows, column, columns)
                                              : decode_elements(weight, row, rows, column, columns);
  out.copy_(numbers.to(rounds_to));
}

void decode_nf4_(const at::Tensor& out, const Nf4Weight& weight, int64_t row, int64_t column,
                 at::ScalarType rounds_to) {
  const bool is_rounded = rounds_to == at::kBFloat16 && out.scalar_type() == at::kFloat;
  if (!has_kernel(out) || (rounds_to != out.scalar_type() && !is_rounded))
    return decode_nf4_reference_(out, weight, row, column, rounds_to);
  check_block(out, weight, row, column);
  const int64_t rows = out.size(0), columns = out.size(1);
  const at::Tensor read = weight.bytes().narrow(0, 0, std::min(weight.bytes().numel(), out.numel() / 2));
  const tensor::KernelBytes bytes({read}, {out});
  if (out.is_meta() || out.numel() == 0) return;
  const Nf4Places places(weight.form());
  const AbsmaxReader absmax(weight);
  const auto* codes = pointer<uint8_t>(weight.codes());
  with_element_type(out, [&](auto element) {
    using T = decltype(element);
    const auto decode = kernels<T>().decode_nf4;
    parallel_for(0, rows, std::max<int64_t>(1, kNf4Grain / columns), [&](int64_t from, int64_t to) {
      std::vector<float> room;
      for (int64_t r = from; r < to; ++r) {
        const int64_t block = places.block(row + r, column);
        decode({.codes = codes + block * kNf4BlockBytes,
                .absmax = absmax.read(row + r, column, columns, room),
                .skipped = places.index(row + r, column) % kNf4Block,
                .count = columns,
                .rounded = is_rounded},
               pointer<T>(out) + r * out.stride(0));
      }
    });
  });
}

at::Tensor dequantize(const Nf4Weight& weight, at::ScalarType type) {
  return dequantize(weight, type, {.rows = weight.outputs(), .columns = weight.inputs()});
}

at::Tensor dequantize(const Nf4Weight& weight, at::ScalarType type, const MatrixPart& part) {
  const Nf4Form& form = weight.form();
  form.part(part);  // checks it
  require(part.row_step == 1, "nf4", "rows of a part must be neighbours: got a step of ", part.row_step);
  const MatrixPart its = nf4_stored(part, form.transposed);
  const at::Tensor out = at::empty({its.rows, its.columns}, weight.bytes().options().dtype(type));
  decode_nf4_(out, weight, its.row, its.column, type);
  return form.transposed ? out.t() : out;
}

}  // namespace colossal::ops
