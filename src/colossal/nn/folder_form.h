// The form of a frozen weight whose codes follow the matrices of a folder (nn/frozen_form.h).
//
//   const nn::FolderForm form(spec.local_shape(here), in, spec.local_boxes(here), matrices, nn::FrozenFilling::Codes);
//   form.take(0, codes, value);                                    // this rank's part of the folder's first matrix
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "colossal/nn/frozen_form.h"
#include "colossal/ops/products/placed_matrix.h"
#include "colossal/tensor/shard_spec.h"

namespace colossal::nn {

/// A rectangle of a folder's matrix on this rank, and its codes in the bytes of the value.
struct FolderPlace {
  size_t matrix;           ///< index of the folder's matrix
  ops::MatrixPart stored;  ///< in our orientation of it
  int64_t row, column;     ///< the first ones here
  std::variant<ops::Nf4Form, ops::GroupForm> form;
  int64_t offset = 0;  ///< of its bytes in the value

  int64_t bytes() const;
};

/// Bytes of rectangles, one after the other. See FrozenForm.
class FolderForm final : public FrozenForm {
 public:
  using Matrices = std::shared_ptr<const std::vector<FolderMatrix>>;

  /// `sizes`: of this rank's part; `inputs`: of the whole weight; `boxes`: the blocks of this rank. The value has the
  /// bytes of this part alone, until pad_to().
  FolderForm(const std::vector<int64_t>& sizes, int64_t inputs, const std::vector<tensor::LocalBox>& boxes,
             Matrices matrices, FrozenFilling filling);
  void pad_to(int64_t bytes) { bytes_ = bytes; }

  at::ScalarType dtype() const override;
  std::vector<int64_t> sizes() const override { return {bytes_}; }
  FrozenFilling filling() const override { return filling_; }
  void encode(const at::Tensor& whole, const at::Tensor& value) const override;
  void take(size_t matrix, const FolderCodes& codes, const at::Tensor& value) const override;
  at::Tensor rows(const at::Tensor& value, int64_t first, int64_t count, at::ScalarType type) const override;
  at::Tensor decode(const at::Tensor& value, at::ScalarType type) const override;
  at::Tensor multiply(const at::Tensor& value, const at::Tensor& x, const at::Tensor& bias) const override;
  at::Tensor input_gradient(const at::Tensor& value, const at::Tensor& dy) const override;

 private:
  void add_places(size_t matrix, const std::vector<tensor::LocalBox>& boxes);
  /// Returns the matrix that the value has; only if this rank has rectangles.
  ops::PlacedMatrix matrix_of(const at::Tensor& value) const;
  /// Returns the codes of a whole matrix of the folder. `whole`: the weight.
  ops::Nf4Weight coded_matrix(const FolderMatrix& folder, const at::Tensor& whole) const;

  int64_t rows_, columns_, inputs_, bytes_ = 0;
  Matrices matrices_;
  FrozenFilling filling_;
  std::vector<FolderPlace> places_;
};

}  // namespace colossal::nn
