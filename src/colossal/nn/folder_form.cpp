#include "colossal/nn/folder_form.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::nn {
namespace {

constexpr char kCodesOfFolder[] = "quantization";

/// Returns the bytes of a rectangle of a folder's matrix. `form`: that of the rectangle.
at::Tensor bytes_of_part(const ops::GroupCodes& codes, const ops::MatrixPart& part, const ops::GroupForm& form) {
  return ops::GroupWeight(codes, part, form.minima).bytes();
}
at::Tensor bytes_of_part(const ops::Nf4Weight& codes, const ops::MatrixPart& part, const ops::Nf4Form& form) {
  const bool is_all =
      form.bytes() == codes.form().bytes() && form.outputs() == codes.outputs() && form.inputs() == codes.inputs();
  return is_all ? codes.bytes() : codes.part(part).bytes();
}

bool has_form(const ops::GroupCodes& codes, const ops::CodesForm& form) {
  return !form.is_nf4 && codes.bits == form.bits && codes.group == form.group &&
         (form.minima || !codes.minima.defined());
}
bool has_form(const ops::Nf4Weight& codes, const ops::CodesForm& form) {
  return form.is_nf4 && codes.form().double_quantized == form.double_quantized;
}

int64_t inputs_in(const ops::GroupCodes& codes) { return codes.inputs(); }
int64_t inputs_in(const ops::Nf4Weight& codes) { return codes.inputs(); }

}  // namespace

int64_t FolderPlace::bytes() const {
  return std::visit([](const auto& one) { return one.bytes(); }, form);
}

FolderForm::FolderForm(const std::vector<int64_t>& sizes, int64_t inputs, const std::vector<tensor::LocalBox>& boxes,
                       Matrices matrices, FrozenFilling filling)
    : rows_(sizes[0]), columns_(sizes[1]), inputs_(inputs), matrices_(std::move(matrices)), filling_(filling) {
  for (size_t i = 0; i < matrices_->size(); ++i) add_places(i, boxes);
  std::stable_sort(places_.begin(), places_.end(),
                   [](const FolderPlace& a, const FolderPlace& b) { return a.row < b.row; });
  for (FolderPlace& place : places_) {
    place.offset = bytes_;
    bytes_ += place.bytes();
  }
}

void FolderForm::add_places(size_t matrix, const std::vector<tensor::LocalBox>& boxes) {
  const FolderMatrix& own = (*matrices_)[matrix];
  const ops::CodesForm& codes = *own.codes;
  const ops::Nf4Form whole = ops::Nf4Form::whole(
      own.transposed ? inputs_ : own.rows, own.transposed ? own.rows : inputs_, codes.double_quantized, own.transposed);
  for (const FolderRows& run : own.parts)
    for (const tensor::LocalBox& box : boxes) {
      const int64_t from = std::max(run.row, box.start[0]),
                    to = std::min(run.row + run.count, box.start[0] + box.size[0]);
      // Rows of a transpose that are not neighbours are places of their own.
      const int64_t step = own.transposed && run.stride != 1 ? 1 : std::max<int64_t>(to - from, 1);
      for (int64_t row = from; row < to && box.size[1] > 0; row += step) {
        const ops::MatrixPart stored{.row = run.first + (row - run.row) * run.stride,
                                     .rows = step,
                                     .column = box.start[1],
                                     .columns = box.size[1],
                                     .row_step = step == 1 ? 1 : run.stride};
        FolderPlace place{matrix, stored, row - box.start[0] + box.local_start[0], box.local_start[1], {}};
        if (codes.is_nf4)
          place.form = whole.part(stored);
        else
          place.form = ops::GroupForm::of(codes, stored);
        places_.push_back(std::move(place));
      }
    }
}

at::ScalarType FolderForm::dtype() const { return at::kByte; }

ops::Nf4Weight FolderForm::coded_matrix(const FolderMatrix& folder, const at::Tensor& whole) const {
  at::Tensor rows;
  if (folder.parts.size() == 1 && folder.parts[0].count == folder.rows && folder.parts[0].stride == 1) {
    rows = whole.narrow(0, folder.parts[0].row, folder.rows);
  } else {
    rows = at::zeros({folder.rows, whole.size(1)}, whole.options());
    for (const FolderRows& run : folder.parts)
      rows.slice(0, run.first, run.first + (run.count - 1) * run.stride + 1, run.stride)
          .copy_(whole.narrow(0, run.row, run.count));
  }
  return ops::quantize_nf4(folder.transposed ? rows.t() : rows,
                           {.double_quantized = folder.codes->double_quantized, .transposed = folder.transposed});
}

void FolderForm::encode(const at::Tensor& whole, const at::Tensor& value) const {
  if (filling_ != FrozenFilling::Numbers) return FrozenForm::encode(whole, value);
  const at::Tensor bytes = at::zeros(sizes(), at::kByte);
  for (size_t matrix = 0; matrix < matrices_->size(); ++matrix) {
    const auto is_of_it = [&](const FolderPlace& place) { return place.matrix == matrix; };
    if (std::any_of(places_.begin(), places_.end(), is_of_it))
      take(matrix, coded_matrix((*matrices_)[matrix], whole), bytes);
  }
  at::Tensor(value).copy_(bytes);
}

void FolderForm::take(size_t matrix, const FolderCodes& codes, const at::Tensor& value) const {
  const FolderMatrix& own = matrices_->at(matrix);
  std::visit(
      [&](const auto& given) {
        require(has_form(given, *own.codes) && given.outputs() == own.rows && inputs_in(given) == inputs_,
                kCodesOfFolder, "codes of a matrix must have the form that the headers of the folder promise, and be [",
                own.rows, ", ", inputs_, "]: got others, [", given.outputs(), ", ", inputs_in(given), "]");
        using Form = std::conditional_t<std::is_same_v<std::decay_t<decltype(given)>, ops::GroupCodes>, ops::GroupForm,
                                        ops::Nf4Form>;
        for (const FolderPlace& place : places_)
          if (place.matrix == matrix)
            at::Tensor(value.narrow(0, place.offset, place.bytes()))
                .copy_(bytes_of_part(given, place.stored, std::get<Form>(place.form)));
      },
      codes);
}

ops::PlacedMatrix FolderForm::matrix_of(const at::Tensor& value) const {
  const at::Tensor bytes = value.detach();
  std::vector<ops::PlacedWeight> weights;
  for (const FolderPlace& place : places_) {
    const at::Tensor own = bytes.narrow(0, place.offset, place.bytes());
    if (const auto* nf4 = std::get_if<ops::Nf4Form>(&place.form))
      weights.push_back({ops::Nf4Weight(*nf4, own), place.row, place.column});
    else
      weights.push_back({ops::GroupWeight(std::get<ops::GroupForm>(place.form), own), place.row, place.column});
  }
  return {rows_, columns_, std::move(weights)};
}

at::Tensor FolderForm::rows(const at::Tensor& value, int64_t first, int64_t count, at::ScalarType type) const {
  if (places_.empty() || count == 0) return at::zeros({count, columns_}, value.options().dtype(type));
  return matrix_of(value).dequantize(type, {.row = first, .rows = count, .columns = columns_}).contiguous();
}

at::Tensor FolderForm::decode(const at::Tensor& value, at::ScalarType type) const {
  return rows(value, 0, rows_, type);
}

// A rank that has only padding multiplies with zeros.
at::Tensor FolderForm::multiply(const at::Tensor& value, const at::Tensor& x, const at::Tensor& bias) const {
  if (!places_.empty()) return matrix_of(value).multiply(x, bias);
  return ops::matmul_nt(x, decode(value, x.scalar_type()), bias);
}

at::Tensor FolderForm::input_gradient(const at::Tensor& value, const at::Tensor& dy) const {
  if (!places_.empty()) return matrix_of(value).input_gradient(dy);
  return ops::matmul_nn(dy, decode(value, dy.scalar_type()));
}

}  // namespace colossal::nn
