#include "colossal/ops/products/nf4_weight.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/products/nf4_layout.h"

namespace colossal::ops {
namespace {

constexpr char kNf4[] = "nf4";
constexpr int64_t kWord = 4;
constexpr int64_t kMaxElements = int64_t{1} << 48;

int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }

/// Offsets in bytes of the parts of the layout.
struct Nf4Offsets {
  int64_t absmax, nested_absmax, nested_values, nested_mean, end;
};
Nf4Offsets offsets_of(const Nf4Form& form) {
  const Nf4Places places(form);
  Nf4Offsets at{};
  at.absmax = places.blocks * kNf4BlockBytes;
  if (!form.double_quantized) {
    at.end = at.absmax + places.blocks * kWord;
    return at;
  }
  at.nested_absmax = at.absmax + parts_of(places.blocks, kWord) * kWord;
  at.nested_values = at.nested_absmax + places.nested * kWord;
  at.nested_mean = at.nested_values + kNf4NestedCodes * kWord;
  at.end = at.nested_mean + kWord;
  return at;
}

at::Tensor bytes_view(const at::Tensor& bytes, int64_t offset, int64_t count, at::ScalarType type) {
  const int64_t size = type == at::kFloat ? kWord : 1;
  const at::Tensor part = bytes.narrow(0, offset, count * size);
  return type == at::kFloat ? part.view(at::kFloat) : part;
}

/// Copies the blocks that hold a row of `to` from the row `row` of `from`, where it begins in `column`.
void copy_row(const Nf4Weight& from, int64_t row, int64_t column, const Nf4Weight& to, int64_t to_row) {
  const Nf4Places source(from.form()), target(to.form());
  const int64_t count = nf4_blocks_of(target.index(to_row, 0), to.form().columns);
  const int64_t first = source.block(row, column), to_first = target.block(to_row, 0);
  to.codes().narrow(0, to_first, count).copy_(from.codes().narrow(0, first, count));
  to.stored_absmax().narrow(0, to_first, count).copy_(from.stored_absmax().narrow(0, first, count));
}

}  // namespace

Nf4Places::Nf4Places(const Nf4Form& form) : first(form.first), stride(form.stride) {
  if (form.columns == form.stride || form.rows == 1) {
    blocks = nf4_blocks_of(first, (form.rows - 1) * stride + form.columns);
  } else {
    // The places of rows in their blocks repeat after at most 64 rows.
    for (int64_t row = 0; row < std::min(form.rows, kNf4Block); ++row)
      pitch = std::max(pitch, nf4_blocks_of(index(row, 0), form.columns));
    blocks = form.rows * pitch;
  }
  const int64_t size = kNf4Block * kNf4NestedBlock;
  nested_first = first / size;
  nested = index(form.rows - 1, form.columns - 1) / size - nested_first + 1;
}

MatrixPart nf4_stored(const MatrixPart& part, bool transposed) {
  if (!transposed) return part;
  return {.row = part.column, .rows = part.columns, .column = part.row, .columns = part.rows};
}

Nf4Form Nf4Form::whole(int64_t rows, int64_t columns, bool double_quantized, bool transposed) {
  return {.rows = rows,
          .columns = columns,
          .stride = columns,
          .double_quantized = double_quantized,
          .transposed = transposed};
}

void Nf4Form::check() const {
  require(rows > 0 && columns > 0 && first >= 0 && stride >= columns && stride < kMaxElements / rows &&
              first < kMaxElements,
          kNf4, "a weight must have rows and columns, and a stride of at least its columns: got ", rows, " x ", columns,
          ", first ", first, ", stride ", stride);
}

Nf4Form Nf4Form::part(const MatrixPart& part) const {
  check();
  require(part.rows > 0 && part.columns > 0 && part.row >= 0 && part.column >= 0 && part.row_step > 0 &&
              part.row + (part.rows - 1) * part.row_step < outputs() && part.columns <= inputs() - part.column,
          kNf4, "a part must be inside of [", outputs(), ", ", inputs(), "]: got ", part.rows, " rows from ", part.row,
          " in steps of ", part.row_step, ", ", part.columns, " columns from ", part.column);
  require(part.row_step == 1 || !transposed, kNf4, "rows of a transposed weight must be neighbours: got a step of ",
          part.row_step);
  const MatrixPart its = nf4_stored(part, transposed);
  Nf4Form form = *this;
  form.rows = its.rows, form.columns = its.columns;
  form.first = first + its.row * stride + its.column;
  form.stride = stride * its.row_step;
  return form;
}

int64_t Nf4Form::blocks() const { return Nf4Places(*this).blocks; }

int64_t Nf4Form::bytes() const { return parts_of(offsets_of(*this).end, 16) * 16; }

Nf4Weight::Nf4Weight(const Nf4Form& form, at::Tensor bytes) : form_(form), bytes_(std::move(bytes)) {
  form_.check();
  require(bytes_.scalar_type() == at::kByte && bytes_.dim() == 1 && bytes_.is_contiguous() &&
              bytes_.numel() == form_.bytes(),
          kNf4, "a weight must be ", form_.bytes(), " bytes: got ", bytes_.scalar_type(), " ", bytes_.sizes());
  require(!bytes_.is_cpu() || reinterpret_cast<uintptr_t>(bytes_.const_data_ptr()) % kWord == 0, kNf4,
          "the bytes of a weight must be aligned to ", kWord);
}

at::Tensor Nf4Weight::codes() const {
  return bytes_view(bytes_, 0, form_.blocks() * kNf4BlockBytes, at::kByte).view({-1, kNf4BlockBytes});
}
at::Tensor Nf4Weight::stored_absmax() const {
  return bytes_view(bytes_, offsets_of(form_).absmax, form_.blocks(), form_.double_quantized ? at::kByte : at::kFloat);
}
at::Tensor Nf4Weight::nested_absmax() const {
  return bytes_view(bytes_, offsets_of(form_).nested_absmax, Nf4Places(form_).nested, at::kFloat);
}
at::Tensor Nf4Weight::nested_values() const {
  return bytes_view(bytes_, offsets_of(form_).nested_values, kNf4NestedCodes, at::kFloat);
}
at::Tensor Nf4Weight::nested_mean() const { return bytes_view(bytes_, offsets_of(form_).nested_mean, 1, at::kFloat); }

at::Tensor Nf4Weight::absmax() const {
  if (!form_.double_quantized) return stored_absmax();
  const Nf4Places places(form_);
  const auto whole_numbers = bytes_.options().dtype(at::kLong);
  at::Tensor in_folder = at::arange(places.blocks, whole_numbers);
  if (places.pitch == 0) {
    in_folder += places.first / kNf4Block;
  } else {
    const at::Tensor rows = at::arange(form_.rows, whole_numbers) * places.stride + places.first;
    in_folder = (rows.floor_divide(kNf4Block).unsqueeze(1) + at::arange(places.pitch, whole_numbers)).flatten();
  }
  // The last row may have a block that it does not use, beyond the last maximum.
  const at::Tensor nested =
      (in_folder.floor_divide(kNf4NestedBlock) - places.nested_first).clamp_max(places.nested - 1);
  const at::Tensor values = nested_values().index_select(0, stored_absmax().to(at::kLong));
  return values.mul_(nested_absmax().index_select(0, nested)).add_(nested_mean());
}

Nf4Weight Nf4Weight::part(const MatrixPart& part) const {
  const Nf4Form form = form_.part(part);
  if (!bytes_.is_cpu() && !bytes_.is_meta()) return to(at::kCPU).part(part).to(bytes_.device());
  const Nf4Weight result(form, at::zeros({form.bytes()}, bytes_.options()));
  const MatrixPart its = nf4_stored(part, form.transposed);
  const Nf4Places source(form_), target(form);
  if (source.pitch == 0 && target.pitch == 0) {
    const int64_t first = source.block(its.row, its.column);
    result.codes().copy_(codes().narrow(0, first, target.blocks));
    result.stored_absmax().copy_(stored_absmax().narrow(0, first, target.blocks));
  } else {
    for (int64_t row = 0; row < form.rows; ++row)
      copy_row(*this, its.row + row * its.row_step, its.column, result, row);
  }
  if (form.double_quantized) {
    result.nested_absmax().copy_(nested_absmax().narrow(0, target.nested_first - source.nested_first, target.nested));
    result.nested_values().copy_(nested_values());
    result.nested_mean().copy_(nested_mean());
  }
  return result;
}

Nf4Weight Nf4Weight::to(at::Device device) const { return {form_, bytes_.to(device)}; }

Nf4Weight nf4_weight(const Nf4Form& form, const Nf4Codes& numbers) {
  form.check();
  const int64_t elements = form.rows * form.columns, blocks = form.blocks();
  const auto require_form = [](const at::Tensor& t, const char* what, at::ScalarType type, int64_t count) {
    require(t.defined() && t.is_cpu() && t.scalar_type() == type && t.numel() == count, kNf4, what, " must be ", count,
            " of ", type, " on the CPU: got ", t.defined() ? t.numel() : 0);
  };
  require(form.first == 0 && form.stride == form.columns, kNf4, "numbers must be those of a whole matrix");
  require_form(numbers.codes, "codes", at::kByte, parts_of(elements, 2));
  require_form(numbers.absmax, "absmax", form.double_quantized ? at::kByte : at::kFloat, blocks);
  const Nf4Weight weight(form, at::zeros({form.bytes()}, at::kByte));
  weight.codes().flatten().narrow(0, 0, numbers.codes.numel()).copy_(numbers.codes.flatten());
  weight.stored_absmax().copy_(numbers.absmax.flatten());
  if (!form.double_quantized) return weight;
  require_form(numbers.nested_absmax, "nested_absmax", at::kFloat, parts_of(blocks, kNf4NestedBlock));
  require_form(numbers.nested_values, "nested_values", at::kFloat, kNf4NestedCodes);
  weight.nested_absmax().copy_(numbers.nested_absmax.flatten());
  weight.nested_values().copy_(numbers.nested_values.flatten());
  weight.nested_mean().fill_(numbers.nested_mean);
  return weight;
}

}  // namespace colossal::ops
