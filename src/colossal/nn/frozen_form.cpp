#include "colossal/nn/frozen_form.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/products/nf4_matrix.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/ops/products/row_matrix.h"

namespace colossal::nn {
namespace {

constexpr int64_t kCodeAlignment = 16;  // bytes, so that numbers of all parameters in a chunk are aligned

int64_t aligned(int64_t bytes) { return (bytes + kCodeAlignment - 1) / kCodeAlignment * kCodeAlignment; }

class Bf16Form final : public FrozenForm {
 public:
  explicit Bf16Form(std::vector<int64_t> sizes) : sizes_(std::move(sizes)) {}
  at::ScalarType dtype() const override { return at::kBFloat16; }
  std::vector<int64_t> sizes() const override { return sizes_; }
  bool has_codes() const override { return false; }
  void encode(const at::Tensor&, const at::Tensor&) const override {
    throw Error("quantization", "numbers in bf16 are no codes: fill the parameter itself");
  }
  at::Tensor decode(const at::Tensor& value, at::ScalarType type) const override {
    return ops::RowMatrix(value).dequantize(type);
  }
  at::Tensor multiply(const at::Tensor& value, const at::Tensor& x, const at::Tensor& bias) const override {
    return ops::RowMatrix(value).multiply(x, bias);
  }
  at::Tensor input_gradient(const at::Tensor& value, const at::Tensor& dy) const override {
    return ops::RowMatrix(value).input_gradient(dy);
  }

 private:
  std::vector<int64_t> sizes_;
};

/// The codes of all rows, one after the other, then their scales; both begin at multiples of 16 bytes.
class Int8Form final : public FrozenForm {
 public:
  Int8Form(std::vector<int64_t> sizes, std::vector<tensor::LocalBox> boxes)
      : rows_(sizes[0]), columns_(sizes[1]), boxes_(std::move(boxes)) {}
  at::ScalarType dtype() const override { return at::kByte; }
  std::vector<int64_t> sizes() const override { return {aligned(rows_ * columns_) + aligned(4 * rows_)}; }
  bool has_codes() const override { return true; }
  void encode(const at::Tensor& whole, const at::Tensor& value) const override {
    const ops::RowCodes coded = ops::encode_rows(whole, at::kChar);
    require(!at::isnan(coded.scales.sum()).item<bool>(), "quantization", "a weight must have finite elements");
    at::Tensor bytes = at::zeros(sizes(), at::kByte);
    for (const tensor::LocalBox& box : boxes_) {
      codes_of(bytes)
          .narrow(0, box.local_start[0], box.size[0])
          .narrow(1, box.local_start[1], box.size[1])
          .copy_(coded.codes.narrow(0, box.start[0], box.size[0]).narrow(1, box.start[1], box.size[1]));
      scales_of(bytes)
          .narrow(0, box.local_start[0], box.size[0])
          .copy_(coded.scales.narrow(0, box.start[0], box.size[0]));
    }
    at::Tensor(value).copy_(bytes);
  }
  at::Tensor decode(const at::Tensor& value, at::ScalarType type) const override {
    return matrix_of(value).dequantize(type);
  }
  at::Tensor multiply(const at::Tensor& value, const at::Tensor& x, const at::Tensor& bias) const override {
    return matrix_of(value).multiply(x, bias);
  }
  at::Tensor input_gradient(const at::Tensor& value, const at::Tensor& dy) const override {
    return matrix_of(value).input_gradient(dy);
  }

 private:
  at::Tensor codes_of(const at::Tensor& bytes) const {
    return bytes.narrow(0, 0, rows_ * columns_).view(at::kChar).view({rows_, columns_});
  }
  at::Tensor scales_of(const at::Tensor& bytes) const {
    return bytes.narrow(0, aligned(rows_ * columns_), 4 * rows_).view(at::kFloat);
  }
  ops::RowMatrix matrix_of(const at::Tensor& value) const {
    const at::Tensor bytes = value.detach();
    return ops::RowMatrix(codes_of(bytes), scales_of(bytes));
  }

  int64_t rows_, columns_;
  std::vector<tensor::LocalBox> boxes_;
};

/// A rectangle of a folder's matrix on this rank.
struct Nf4Place {
  size_t matrix;           // number of the folder's matrix
  ops::MatrixPart stored;  // in our orientation of it
  int64_t row, column;     // here
  ops::Nf4Form form{};
  int64_t offset = 0;  // of its bytes in the value
};

/// The bytes of the rectangles, in the order of their rows here. If they have whole rows, bytes of zeros between them
/// stand for rows of padding, and products decode slices.
class Nf4FrozenForm final : public FrozenForm {
 public:
  Nf4FrozenForm(std::vector<int64_t> sizes, std::vector<FolderMatrix> matrices, int64_t inputs,
                const std::vector<tensor::LocalBox>& boxes, bool double_quantized)
      : rows_(sizes[0]), columns_(sizes[1]), matrices_(std::move(matrices)), double_quantized_(double_quantized) {
    for (size_t i = 0; i < matrices_.size(); ++i) add_places(i, inputs, boxes);
    std::stable_sort(places_.begin(), places_.end(),
                     [](const Nf4Place& a, const Nf4Place& b) { return a.row < b.row; });
    has_whole_rows_ = follow_each_other();
    int64_t row = 0;
    for (Nf4Place& place : places_) {
      if (has_whole_rows_) add_zeros(place.row - row);
      place.offset = ops::bytes_of(forms_);
      forms_.push_back(place.form);
      row = place.row + place.form.outputs();
    }
    if (has_whole_rows_) add_zeros(rows_ - row);
    bytes_ = own_bytes();
  }
  int64_t own_bytes() const { return ops::bytes_of(forms_); }
  void pad_to(int64_t bytes) { bytes_ = bytes; }
  at::ScalarType dtype() const override { return at::kByte; }
  std::vector<int64_t> sizes() const override { return {bytes_}; }
  bool has_codes() const override { return true; }
  void encode(const at::Tensor& whole, const at::Tensor& value) const override {
    const at::Tensor bytes = at::zeros(sizes(), at::kByte);
    for (size_t matrix = 0; matrix < matrices_.size(); ++matrix) {
      const auto is_of_it = [&](const Nf4Place& place) { return place.matrix == matrix; };
      if (std::none_of(places_.begin(), places_.end(), is_of_it)) continue;
      const ops::Nf4Weight coded = coded_matrix(matrices_[matrix], whole);
      for (const Nf4Place& place : places_) {
        if (place.matrix != matrix) continue;
        const bool is_all = place.form.bytes() == coded.form().bytes() && place.form.outputs() == coded.outputs() &&
                            place.form.inputs() == coded.inputs();
        bytes.narrow(0, place.offset, place.form.bytes())
            .copy_(is_all ? coded.bytes() : coded.part(place.stored).bytes());
      }
    }
    at::Tensor(value).copy_(bytes);
  }
  at::Tensor decode(const at::Tensor& value, at::ScalarType type) const override {
    if (has_whole_rows_) return matrix_of(value).dequantize(type).contiguous();
    const at::Tensor bytes = value.detach(), values = at::zeros({rows_, columns_}, bytes.options().dtype(type));
    for (const Nf4Place& place : places_) {
      const ops::Nf4Weight part(place.form, bytes.narrow(0, place.offset, place.form.bytes()));
      values.narrow(0, place.row, part.outputs())
          .narrow(1, place.column, part.inputs())
          .copy_(ops::dequantize(part, type));
    }
    return values;
  }
  at::Tensor multiply(const at::Tensor& value, const at::Tensor& x, const at::Tensor& bias) const override {
    if (has_whole_rows_) return matrix_of(value).multiply(x, bias);
    return ops::matmul_nt(x, decode(value, x.scalar_type()), bias);
  }
  at::Tensor input_gradient(const at::Tensor& value, const at::Tensor& dy) const override {
    if (has_whole_rows_) return matrix_of(value).input_gradient(dy);
    return ops::matmul_nn(dy, decode(value, dy.scalar_type()));
  }

 private:
  void add_places(size_t matrix, int64_t inputs, const std::vector<tensor::LocalBox>& boxes);
  bool follow_each_other() const;
  ops::Nf4Matrix matrix_of(const at::Tensor& value) const {
    return ops::Nf4Matrix::of(forms_, value.detach().narrow(0, 0, own_bytes()), columns_);
  }
  bool is_transposed() const { return matrices_.front().transposed; }
  void add_zeros(int64_t count) {
    if (count == 0) return;
    forms_.push_back(is_transposed() ? ops::Nf4Form::whole(columns_, count, double_quantized_, true)
                                     : ops::Nf4Form::whole(count, columns_, double_quantized_));
  }
  /// Returns the codes of a whole matrix of the folder. `whole`: the weight.
  ops::Nf4Weight coded_matrix(const FolderMatrix& folder, const at::Tensor& whole) const {
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
                             {.double_quantized = double_quantized_, .transposed = folder.transposed});
  }

  int64_t rows_, columns_, bytes_ = 0;  // bytes_: of all ranks, with padding
  std::vector<FolderMatrix> matrices_;
  bool double_quantized_, has_whole_rows_ = false;
  std::vector<Nf4Place> places_;
  std::vector<ops::Nf4Form> forms_;  // all that the value has, one after the other
};

void Nf4FrozenForm::add_places(size_t matrix, int64_t inputs, const std::vector<tensor::LocalBox>& boxes) {
  const bool transposed = matrices_[matrix].transposed;
  const int64_t rows = matrices_[matrix].rows;
  const ops::Nf4Form whole =
      ops::Nf4Form::whole(transposed ? inputs : rows, transposed ? rows : inputs, double_quantized_, transposed);
  for (const FolderRows& run : matrices_[matrix].parts)
    for (const tensor::LocalBox& box : boxes) {
      const int64_t from = std::max(run.row, box.start[0]),
                    to = std::min(run.row + run.count, box.start[0] + box.size[0]);
      // Rows of a transpose that are not neighbours are places of their own.
      const int64_t step = transposed && run.stride != 1 ? 1 : std::max<int64_t>(to - from, 1);
      for (int64_t row = from; row < to && box.size[1] > 0; row += step) {
        const ops::MatrixPart stored{.row = run.first + (row - run.row) * run.stride,
                                     .rows = step,
                                     .column = box.start[1],
                                     .columns = box.size[1],
                                     .row_step = step == 1 ? 1 : run.stride};
        places_.push_back(
            {matrix, stored, row - box.start[0] + box.local_start[0], box.local_start[1], whole.part(stored)});
      }
    }
}

/// Returns true if no two places have elements of one row, and all begin with the first column.
bool Nf4FrozenForm::follow_each_other() const {
  if (rows_ == 0 || columns_ == 0) return false;
  int64_t next = 0;
  for (const Nf4Place& place : places_) {
    if (place.column != 0 || place.row < next || place.form.transposed != is_transposed()) return false;
    next = place.row + place.form.outputs();
  }
  return true;
}

void check_matrices(const Parameter& weight, const std::vector<FolderMatrix>& matrices) {
  const int64_t rows = weight.spec.shape[0];
  std::vector<bool> taken(static_cast<size_t>(rows));
  int64_t count = 0;
  for (const FolderMatrix& matrix : matrices)
    for (const FolderRows& run : matrix.parts) {
      require(run.row >= 0 && run.count > 0 && run.row + run.count <= rows && run.stride > 0 && run.first >= 0 &&
                  run.first + (run.count - 1) * run.stride < matrix.rows,
              "adapter", "a folder's matrix must have rows of ", weight.name, ": got ", run.count, " rows from ",
              run.row, " of ", rows);
      for (int64_t row = run.row; row < run.row + run.count; ++row, ++count) {
        require(!taken[static_cast<size_t>(row)], "adapter", "folders must have each row of ", weight.name,
                " once: got row ", row, " twice");
        taken[static_cast<size_t>(row)] = true;
      }
    }
  require(count == rows, "adapter", "folders must have each row of ", weight.name, ": got ", count, " of ", rows);
}

/// Returns the coordinates of all ranks that hold parts of a tensor, with the other coordinates of `here`.
std::vector<tensor::MeshCoordinates> places_of_parts(const tensor::ShardSpec& spec,
                                                     const tensor::MeshCoordinates& here) {
  std::vector<tensor::MeshCoordinates> all{here};
  for (size_t axis = 0; axis < here.axes().size(); ++axis) {
    const tensor::MeshCoordinates::Axis& of = here.axes()[axis];
    if (of.size == 1 || !spec.splits_over(of.name)) continue;
    std::vector<tensor::MeshCoordinates> more;
    for (const tensor::MeshCoordinates& one : all)
      for (int index = 0; index < of.size; ++index) {
        std::vector<tensor::MeshCoordinates::Axis> axes = one.axes();
        axes[axis].index = index;
        more.emplace_back(std::move(axes));
      }
    all = std::move(more);
  }
  return all;
}

}  // namespace

int64_t FrozenForm::bytes() const {
  return c10::multiply_integers(sizes()) * static_cast<int64_t>(c10::elementSize(dtype()));
}

std::shared_ptr<const FrozenForm> make_frozen_form(const FrozenOptions& options, const Parameter& weight,
                                                   std::vector<FolderMatrix> matrices,
                                                   const tensor::MeshCoordinates& coordinates) {
  const tensor::ShardSpec& spec = weight.spec;
  require(spec.shape.size() == 2, "adapter", weight.name, " must be a matrix to be stored in another form: got ",
          spec.shape.size(), " dimensions");
  std::vector<int64_t> sizes = spec.local_shape(coordinates);
  if (options.format == FrozenFormat::Bf16) return std::make_shared<Bf16Form>(std::move(sizes));
  std::vector<tensor::LocalBox> boxes = spec.local_boxes(coordinates);
  if (options.format == FrozenFormat::Int8) return std::make_shared<Int8Form>(std::move(sizes), std::move(boxes));
  if (matrices.empty()) matrices = {{.parts = {{.count = spec.shape[0]}}, .rows = spec.shape[0]}};
  check_matrices(weight, matrices);
  auto form =
      std::make_shared<Nf4FrozenForm>(std::move(sizes), matrices, spec.shape[1], boxes, options.double_quantized);
  // Ranks pack the parameters of a model into chunks alike, so all parts have the size of the largest one.
  int64_t bytes = form->own_bytes();
  for (const tensor::MeshCoordinates& place : places_of_parts(spec, coordinates))
    bytes = std::max(bytes, Nf4FrozenForm(spec.local_shape(place), matrices, spec.shape[1], spec.local_boxes(place),
                                          options.double_quantized)
                                .own_bytes());
  form->pad_to(bytes);
  return form;
}

}  // namespace colossal::nn
