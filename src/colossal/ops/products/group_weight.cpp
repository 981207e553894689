#include "colossal/ops/products/group_weight.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

constexpr char kGroupWeight[] = "quantization";
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kDecodedAtOnce = int64_t{1} << 15;  // elements that are worth a thread

int64_t up_to_multiple(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

int64_t scales_at(const GroupForm& form) { return up_to_multiple(form.rows * form.pitch(), kFloatBytes); }

at::Tensor floats_of(const at::Tensor& bytes, const GroupForm& form, int64_t place) {
  const int64_t size = form.rows * form.groups() * kFloatBytes;
  return bytes.narrow(0, scales_at(form) + place * size, size).view(at::kFloat).view({form.rows, form.groups()});
}

/// Values of a byte. Looking them up is faster than converting them.
constexpr auto kByteValues = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) values[static_cast<size_t>(code)] = static_cast<float>(code);
  return values;
}();

/// Rows of codes with groups, on the CPU.
struct RowsOfGroups {
  const uint8_t* codes;          ///< [rows, pitch]
  const float *scales, *minima;  ///< [rows, groups]; minima null = none
  int64_t bits, group, lead, pitch, groups;
};

/// Decodes columns into `to`, whose rows are `to_pitch` elements apart. Values are computed as Wide and rounded to
/// Rounded.
template <class Wide, class Rounded, class To>
void decode_rows(const RowsOfGroups& from, int64_t rows, int64_t column, int64_t columns, To* to, int64_t to_pitch) {
  const auto rounded = [](Wide value) { return static_cast<To>(static_cast<Rounded>(value)); };
  const auto decode_row = [&](int64_t row) {
    const uint8_t* code = from.codes + row * from.pitch;
    To* out = to + row * to_pitch - column;
    for (int64_t k = column, end = 0; k < column + columns; k = end) {
      const int64_t in_row = (from.lead + k) / from.group, at = row * from.groups + in_row;
      end = std::min((in_row + 1) * from.group - from.lead, column + columns);
      const auto scale = static_cast<Wide>(from.scales[at]);
      const auto minimum = from.minima ? static_cast<Wide>(from.minima[at]) : Wide{0};
      const auto middle = static_cast<Wide>(from.minima ? 0 : from.bits == 4 ? 8 : 128);
      if (from.bits == 8) {
        for (int64_t i = k; i < end; ++i)
          out[i] = rounded((static_cast<Wide>(kByteValues[code[i]]) - middle) * scale + minimum);
        continue;
      }
      To level[16];
      for (int c = 0; c < 16; ++c) level[c] = rounded((static_cast<Wide>(c) - middle) * scale + minimum);
      int64_t i = k;
      if (i % 2 != 0) out[i] = level[code[i / 2] & 15], ++i;
      for (; i + 1 < end; i += 2) {
        const uint8_t pair = code[i / 2];
        out[i] = level[pair >> 4];
        out[i + 1] = level[pair & 15];
      }
      if (i < end) out[i] = level[code[i / 2] >> 4];
    }
  };
  parallel_for(0, rows, std::max<int64_t>(1, kDecodedAtOnce / std::max<int64_t>(1, columns)),
               [&](int64_t first, int64_t end) {
                 for (int64_t row = first; row < end; ++row) decode_row(row);
               });
}

void decode_on_cpu(const at::Tensor& out, const GroupWeight& weight, int64_t row, int64_t column,
                   at::ScalarType rounds_to) {
  const GroupForm& form = weight.form();
  const at::Tensor codes = weight.codes(), scales = weight.scales(), minima = weight.minima();
  const RowsOfGroups from{.codes = codes.const_data_ptr<uint8_t>() + row * form.pitch(),
                          .scales = scales.const_data_ptr<float>() + row * form.groups(),
                          .minima = minima.defined() ? minima.const_data_ptr<float>() + row * form.groups() : nullptr,
                          .bits = form.bits,
                          .group = form.group,
                          .lead = form.lead,
                          .pitch = form.pitch(),
                          .groups = form.groups()};
  const auto decode = [&]<class Wide, class Rounded, class To>(Wide, Rounded, To) {
    decode_rows<Wide, Rounded, To>(from, out.size(0), column, out.size(1), out.mutable_data_ptr<To>(), out.stride(0));
  };
  const bool is_float = out.scalar_type() == at::kFloat;
  switch (rounds_to) {
    case at::kDouble:
      return decode(double{}, double{}, double{});
    case at::kFloat:
      return decode(float{}, float{}, float{});
    case at::kBFloat16:
      return is_float ? decode(float{}, at::BFloat16{}, float{}) : decode(float{}, at::BFloat16{}, at::BFloat16{});
    case at::kHalf:
      return is_float ? decode(float{}, at::Half{}, float{}) : decode(float{}, at::Half{}, at::Half{});
    default:
      throw Error(kGroupWeight, concat("codes must be decoded to fp64, fp32, bf16 or fp16: got ", rounds_to));
  }
}

/// Decodes whole groups, or a part of one group.
at::Tensor decode_by_operators(const GroupWeight& weight, const MatrixPart& part, at::ScalarType wide) {
  const GroupForm& form = weight.form();
  const int64_t first = (form.lead + part.column) / form.group,
                last = (form.lead + part.column + part.columns - 1) / form.group;
  const bool is_one = first == last;
  // the columns of the groups, of which the first and the last one may be cut
  const int64_t begin = is_one ? part.column : std::max<int64_t>(0, first * form.group - form.lead),
                end = is_one ? part.column + part.columns : std::min(form.columns, (last + 1) * form.group - form.lead),
                even = form.bits == 4 ? begin / 2 * 2 : begin;
  const at::Tensor bytes = weight.codes().narrow(0, part.row, part.rows);
  at::Tensor codes = bytes.narrow(1, even * form.bits / 8, ((end - even) * form.bits + 7) / 8);
  if (form.bits == 4) codes = at::stack({codes.bitwise_right_shift(4), codes.bitwise_and(15)}, -1).flatten(1);
  at::Tensor numbers = codes.narrow(1, begin - even, end - begin).to(wide);
  const int64_t before = is_one ? 0 : begin + form.lead - first * form.group,
                after = is_one ? 0 : (last + 1) * form.group - form.lead - end;
  if (before + after > 0) numbers = at::constant_pad_nd(numbers, {before, after});
  numbers = numbers.unflatten(1, {last - first + 1, -1});
  const auto of_groups = [&](const at::Tensor& all) {
    return all.narrow(0, part.row, part.rows).narrow(1, first, last - first + 1).unsqueeze(-1);
  };
  if (!form.minima) numbers.sub_(form.bits == 4 ? 8 : 128);
  numbers.mul_(of_groups(weight.scales()));
  if (form.minima) numbers.add_(of_groups(weight.minima()));
  return numbers.flatten(1).narrow(1, part.column - begin + before, part.columns);
}

}  // namespace

at::Tensor two_in_a_byte(const at::Tensor& codes) {
  const at::Tensor pairs = codes.unflatten(1, {-1, 2});
  return pairs.select(2, 0).bitwise_left_shift(4).bitwise_or(pairs.select(2, 1));
}

GroupForm GroupForm::of(const CodesForm& codes, const MatrixPart& part) {
  return {.rows = part.rows,
          .columns = part.columns,
          .lead = part.column % codes.group,
          .bits = codes.bits,
          .group = codes.group,
          .minima = codes.minima};
}

int64_t GroupForm::bytes() const {
  constexpr int64_t kAlignment = 16;
  return up_to_multiple(scales_at(*this) + (minima ? 2 : 1) * rows * groups() * kFloatBytes, kAlignment);
}

GroupWeight::GroupWeight(const GroupForm& form, at::Tensor bytes) : form_(form), bytes_(std::move(bytes)) {
  require(bytes_.scalar_type() == at::kByte && bytes_.dim() == 1 && bytes_.is_contiguous() &&
              bytes_.numel() == form_.bytes(),
          kGroupWeight, "a weight must be ", form_.bytes(), " bytes: got ", bytes_.scalar_type(), " ", bytes_.sizes());
  require(!bytes_.is_cpu() || reinterpret_cast<uintptr_t>(bytes_.const_data_ptr()) % kFloatBytes == 0, kGroupWeight,
          "the bytes of a weight must be aligned to ", kFloatBytes);
}

GroupWeight::GroupWeight(const GroupCodes& codes, const MatrixPart& part, bool minima)
    : form_(GroupForm::of({.bits = codes.bits, .group = codes.group, .minima = minima}, part)),
      bytes_(at::zeros({form_.bytes()}, at::kByte)) {
  const auto part_of = [&](const at::Tensor& all, int64_t column, int64_t columns) {
    return all.slice(0, part.row, part.row + (part.rows - 1) * part.row_step + 1, part.row_step)
        .narrow(1, column, columns);
  };
  at::Tensor own = part_of(codes.codes, part.column, part.columns);
  if (form_.bits == 4) own = two_in_a_byte(at::constant_pad_nd(own, {0, form_.columns % 2}));
  this->codes().copy_(own);
  const at::Tensor of_groups = part_of(codes.scales, part.column / codes.group, form_.groups());
  scales().copy_(of_groups);
  if (!minima) return;
  // Code 2^(bits - 1) stands for 0 if there are no minima.
  this->minima().copy_(codes.minima.defined() ? part_of(codes.minima, part.column / codes.group, form_.groups())
                                              : of_groups * -static_cast<double>(1 << (form_.bits - 1)));
}

at::Tensor GroupWeight::codes() const {
  return bytes_.narrow(0, 0, form_.rows * form_.pitch()).view({form_.rows, form_.pitch()});
}
at::Tensor GroupWeight::scales() const { return floats_of(bytes_, form_, 0); }
at::Tensor GroupWeight::minima() const { return form_.minima ? floats_of(bytes_, form_, 1) : at::Tensor(); }

void decode_groups_(const at::Tensor& out, const GroupWeight& weight, int64_t row, int64_t column,
                    at::ScalarType rounds_to) {
  const GroupForm& form = weight.form();
  require(row >= 0 && column >= 0 && out.dim() == 2 && row + out.size(0) <= form.rows &&
              column + out.size(1) <= form.columns,
          kGroupWeight, "a part must be inside of [", form.rows, ", ", form.columns, "]: got ", out.sizes(), " from ",
          row, ", ", column);
  require(out.stride(1) == 1 || out.size(1) == 1, kGroupWeight, "the rows of the result must be dense");
  if (out.numel() == 0) return;
  if (tensor::is_for_cpu(out)) {
    const tensor::KernelBytes moved({weight.codes().narrow(0, row, out.size(0))}, {out});
    if (out.is_cpu()) decode_on_cpu(out, weight, row, column, rounds_to);
    return;
  }
  const at::ScalarType wide = rounds_to == at::kDouble ? at::kDouble : at::kFloat;
  const MatrixPart part{.row = row, .rows = out.size(0), .column = column, .columns = out.size(1)};
  out.copy_(decode_by_operators(weight, part, wide).to(rounds_to));
}

}  // namespace colossal::ops
