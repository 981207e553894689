#include "colossal/nn/frozen_form.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/folder_form.h"
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
  FrozenFilling filling() const override { return FrozenFilling::Elements; }
  at::Tensor rows(const at::Tensor& value, int64_t first, int64_t count, at::ScalarType type) const override {
    return ops::RowMatrix(value).dequantize(type, {.row = first, .rows = count, .columns = sizes_[1]});
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
  FrozenFilling filling() const override { return FrozenFilling::Numbers; }
  at::Tensor rows(const at::Tensor& value, int64_t first, int64_t count, at::ScalarType type) const override {
    return matrix_of(value).dequantize(type, {.row = first, .rows = count, .columns = columns_});
  }
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

void check_matrices(const std::string& weight, int64_t rows, const std::vector<FolderMatrix>& matrices) {
  std::vector<bool> taken(static_cast<size_t>(rows));
  int64_t count = 0;
  for (const FolderMatrix& matrix : matrices)
    for (const FolderRows& run : matrix.parts) {
      require(run.row >= 0 && run.count > 0 && run.row + run.count <= rows && run.stride > 0 && run.first >= 0 &&
                  run.first + (run.count - 1) * run.stride < matrix.rows,
              "adapter", "a folder's matrix must have rows of ", weight, ": got ", run.count, " rows from ", run.row,
              " of ", rows);
      for (int64_t row = run.row; row < run.row + run.count; ++row, ++count) {
        require(!taken[static_cast<size_t>(row)], "adapter", "folders must have each row of ", weight,
                " once: got row ", row, " twice");
        taken[static_cast<size_t>(row)] = true;
      }
    }
  require(count == rows, "adapter", "folders must have each row of ", weight, ": got ", count, " of ", rows);
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

/// Returns a FolderForm that has the size of the largest part, because ranks pack the parameters of a model into chunks
/// alike.
std::shared_ptr<const FrozenForm> folder_form_of(const Parameter& weight, std::vector<FolderMatrix> matrices,
                                                 FrozenFilling filling, const tensor::MeshCoordinates& coordinates) {
  const tensor::ShardSpec spec = spec_of_matrix(weight);
  check_matrices(weight.name, spec.shape[0], matrices);
  const auto shared = std::make_shared<const std::vector<FolderMatrix>>(std::move(matrices));
  const auto form_at = [&](const tensor::MeshCoordinates& place) {
    return std::make_shared<FolderForm>(spec.local_shape(place), spec.shape[1], spec.local_boxes(place), shared,
                                        filling);
  };
  const std::shared_ptr<FolderForm> form = form_at(coordinates);
  int64_t bytes = form->bytes();
  for (const tensor::MeshCoordinates& place : places_of_parts(spec, coordinates))
    bytes = std::max(bytes, form_at(place)->bytes());
  form->pad_to(bytes);
  return form;
}

}  // namespace

void FrozenForm::encode(const at::Tensor&, const at::Tensor&) const {
  throw Error("quantization", "a value must be made of numbers by a form with FrozenFilling::Numbers: got another one");
}

void FrozenForm::take(size_t, const FolderCodes&, const at::Tensor&) const {
  throw Error("quantization", "a value must be made of codes by a form with FrozenFilling::Codes: got another one");
}

int64_t FrozenForm::bytes() const {
  return c10::multiply_integers(sizes()) * static_cast<int64_t>(c10::elementSize(dtype()));
}

tensor::ShardSpec spec_of_matrix(const Parameter& weight) {
  tensor::ShardSpec spec = weight.spec;
  require(spec.shape.size() == (weight.is_stack ? 3 : 2), "adapter", weight.name,
          " must be a matrix to be stored in another form, or a stack of matrices: got ", spec.shape.size(),
          " dimensions");
  if (!weight.is_stack) return spec;
  spec.shape.erase(spec.shape.begin());
  spec.splits.erase(spec.splits.begin());
  return spec;
}

std::shared_ptr<const FrozenForm> make_frozen_form(const FrozenOptions& options, const Parameter& weight,
                                                   std::vector<FolderMatrix> matrices,
                                                   const tensor::MeshCoordinates& coordinates) {
  const tensor::ShardSpec spec = spec_of_matrix(weight);
  std::vector<int64_t> sizes = spec.local_shape(coordinates);
  if (options.format == FrozenFormat::Bf16) return std::make_shared<Bf16Form>(std::move(sizes));
  if (options.format == FrozenFormat::Int8)
    return std::make_shared<Int8Form>(std::move(sizes), spec.local_boxes(coordinates));
  if (matrices.empty()) matrices = {{.parts = {{.count = spec.shape[0]}}, .rows = spec.shape[0]}};
  for (FolderMatrix& matrix : matrices)
    matrix.codes = ops::CodesForm{.is_nf4 = true, .double_quantized = options.double_quantized};
  return folder_form_of(weight, std::move(matrices), FrozenFilling::Numbers, coordinates);
}

std::shared_ptr<const FrozenForm> make_folder_form(const Parameter& weight, const std::vector<FolderMatrix>& matrices,
                                                   const tensor::MeshCoordinates& coordinates) {
  for (const FolderMatrix& matrix : matrices)
    require(matrix.codes && !matrix.transposed, "adapter", "the matrices of ", weight.name,
            " must be codes [out, in] in the folder: got numbers");
  return folder_form_of(weight, matrices, FrozenFilling::Codes, coordinates);
}

}  // namespace colossal::nn
