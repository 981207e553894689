// How the weight of a frozen linear layer is stored in place of its values: in bf16, in 8 bits, in NF4, or in the codes
// that a quantized folder has. Training with adapters on such weights is QLoRA (Dettmers et al. 2023,
// arXiv:2305.14314).
//
//   const auto form = nn::make_frozen_form({.format = nn::FrozenFormat::Nf4}, weight, {}, parameters.coordinates());
//   parameters.store_as(weight, form);                    // weight.value is bytes from here on
//   const at::Tensor y = form->multiply(weight.value, x, bias);
//
// The codes of a matrix do not depend on the layout: each rank encodes or reads the whole matrix, and keeps what
// belongs to its part. So all layouts have the same values.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "colossal/nn/parameter.h"
#include "colossal/ops/products/group_codes.h"
#include "colossal/ops/products/nf4_weight.h"
#include "colossal/tensor/mesh_coordinates.h"

namespace colossal::nn {

/// Neighbouring rows of a weight, and where a folder's matrix has them: at first, first + stride and so on.
struct FolderRows {
  int64_t row = 0, count = 0;  ///< of the weight
  int64_t first = 0, stride = 1;
};

/// A matrix of a folder, [rows, in] as we have it. A fused weight has rows of several.
struct FolderMatrix {
  std::vector<FolderRows> parts;
  int64_t rows = 0;         ///< all rows, also those of other weights, which count as zeros
  bool transposed = false;  ///< the folder stores [in, rows]
  /// The form in which the folder has it, [rows, in]; none = numbers
  std::optional<ops::CodesForm> codes{};
};

/// A matrix [rows, in] as a folder has it quantized.
using FolderCodes = std::variant<ops::GroupCodes, ops::Nf4Weight>;

enum class FrozenFormat : uint8_t {
  Bf16,
  Int8,  ///< one scale for each output, over all inputs: ops::encode_rows()
  Nf4,   ///< blocks of 64 along each matrix as the folder stores it: ops::quantize_nf4()
};

struct FrozenOptions {
  FrozenFormat format = FrozenFormat::Nf4;
  bool double_quantized = true;  ///< NF4: block maxima in 8 bits, too
};

/// How the value of a parameter is set.
enum class FrozenFilling : uint8_t {
  Elements,  ///< one by one, like those of a parameter without a form
  Numbers,   ///< FrozenForm::encode() makes it of the whole matrix
  Codes,     ///< FrozenForm::take() copies the codes of a folder
};

/// The form of one weight on this rank; of a stack, that of each of its matrices. Values of a parameter with a form are
/// tensors of dtype() and sizes(), those of a stack [matrices of this rank, sizes()...].
///
/// Numbers: products are those of ops::PlacedMatrix and ops::RowMatrix. Padding of the layout is zero.
/// Memory:  per element 2 bytes (bf16); 1 byte, and 4 per output (int8); those of ops::Nf4Weight and ops::GroupWeight.
///          Multiplying decodes slices.
/// Thread safety: any threads may call any members.
class FrozenForm {
 public:
  virtual ~FrozenForm() = default;
  virtual at::ScalarType dtype() const = 0;
  /// The same on all ranks that hold parts of the weight.
  virtual std::vector<int64_t> sizes() const = 0;
  virtual FrozenFilling filling() const = 0;
  /// Writes this rank's part of `whole`, the logical matrix [out, in] in fp32 on the CPU, to `value`.
  /// Errors ("quantization"): elements that are not finite. Only for FrozenFilling::Numbers.
  virtual void encode(const at::Tensor& whole, const at::Tensor& value) const;
  /// Writes this rank's part of one of the folder's matrices to `value`, on the CPU, which is zeros before the first
  /// call. `matrix`: its index among those of make_folder_form(). Errors ("quantization"): codes of another form or
  /// size. Only for FrozenFilling::Codes.
  virtual void take(size_t matrix, const FolderCodes& codes, const at::Tensor& value) const;
  /// Returns the values of rows [first, first + count) of this rank's part in `type`: a new tensor.
  virtual at::Tensor rows(const at::Tensor& value, int64_t first, int64_t count, at::ScalarType type) const = 0;
  /// Returns the values of this rank's part in `type`, a new tensor of ShardSpec::local_shape().
  virtual at::Tensor decode(const at::Tensor& value, at::ScalarType type) const = 0;
  /// Returns x Wt + bias: [T, rows of the part]. x is [T, in], `bias` undefined or of all rows.
  virtual at::Tensor multiply(const at::Tensor& value, const at::Tensor& x, const at::Tensor& bias) const = 0;
  /// Returns dy W: [T, in].
  virtual at::Tensor input_gradient(const at::Tensor& value, const at::Tensor& dy) const = 0;

  int64_t bytes() const;
};

/// Returns the form of this rank's part of a weight [out, in], or of the matrices of a stack [E, out, in].
/// `matrices` of the folder have each row of a matrix once; empty = it is one matrix, not transposed.
/// Errors ("adapter"): a weight of other dimensions, or matrices that do not have its rows.
std::shared_ptr<const FrozenForm> make_frozen_form(const FrozenOptions& options, const Parameter& weight,
                                                   std::vector<FolderMatrix> matrices,
                                                   const tensor::MeshCoordinates& coordinates);

/// Returns the form with the codes that a folder has: all of its matrices have FolderMatrix::codes. Values of a stack
/// have matrices of one form. Errors: as make_frozen_form().
std::shared_ptr<const FrozenForm> make_folder_form(const Parameter& weight, const std::vector<FolderMatrix>& matrices,
                                                   const tensor::MeshCoordinates& coordinates);

/// Returns the spec of one matrix of a stack, or of a weight that is not a stack.
tensor::ShardSpec spec_of_matrix(const Parameter& weight);

}  // namespace colossal::nn
