// Matrices whose groups of inputs share a scale (ops/products/group_codes.h), as one tensor of bytes.
//
//   const ops::GroupWeight w(codes, {.rows = codes.outputs(), .columns = codes.inputs()});          // [out, in]
//   ops::decode_groups_(values, w, /*row=*/0, /*column=*/0, values.scalar_type());
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/products/group_codes.h"
#include "colossal/ops/products/nf4_weight.h"

namespace colossal::ops {

/// Sizes of a GroupWeight. It has no tensor, so a layer knows the memory of a weight before it has one.
struct GroupForm {
  int64_t rows = 0, columns = 0;
  int64_t lead = 0;  ///< inputs of the first group before the first column, which the weight does not have
  int64_t bits = 8, group = 128;
  bool minima = false;

  /// Returns the form of a part of a matrix. Its groups are those of the matrix, so it may begin and end inside of one.
  static GroupForm of(const CodesForm& codes, const MatrixPart& part);
  int64_t groups() const { return (lead + columns + group - 1) / group; }
  /// Number of bytes of the codes of a row.
  int64_t pitch() const { return (columns * bits + 7) / 8; }
  /// Number of bytes of the weight, a multiple of 16.
  int64_t bytes() const;
};

/// A weight [rows, columns] in 8 or 4 bits, with a scale and perhaps a minimum for each group of inputs. All of it is
/// one tensor of bytes, so that it can be the value of a parameter.
///
/// Layout: the codes, row after row, of 4 bits the first in the upper half of a byte; fp32 scales [rows, groups]; fp32
///         minima [rows, groups].
/// Memory: GroupForm::bytes(): bits / 8 for each element, and 4 bytes for each group and row, 8 with minima.
class GroupWeight {
 public:
  /// Takes bytes in the layout above, as a view. Errors ("quantization"): another dtype or number; bytes of a CPU that
  /// are not aligned to 4.
  GroupWeight(const GroupForm& form, at::Tensor bytes);
  /// Copies a part of a matrix, on the CPU. `minima`: true = it has minima, also if `codes` has none.
  GroupWeight(const GroupCodes& codes, const MatrixPart& part, bool minima);
  /// Copies a matrix.
  explicit GroupWeight(const GroupCodes& codes)
      : GroupWeight(codes, {.rows = codes.outputs(), .columns = codes.inputs()}, codes.minima.defined()) {}

  const GroupForm& form() const { return form_; }
  const at::Tensor& bytes() const { return bytes_; }
  /// Return views of the bytes: uint8 [rows, pitch]; fp32 [rows, groups]. minima(): undefined = none.
  at::Tensor codes() const;
  at::Tensor scales() const;
  at::Tensor minima() const;
  GroupWeight to(at::Device device) const { return {form_, bytes_.to(device)}; }

 private:
  GroupForm form_;
  at::Tensor bytes_;
};

/// Decodes rows [row, row + out.size(0)) and columns [column, column + out.size(1)) into `out`, whose rows are dense.
/// Numbers: in fp32, fp64 for fp64; then rounded once to `rounds_to`, the dtype of `out` or a narrower one.
/// Devices: the threads of the CPU; LibTorch's operators elsewhere, which decode the groups of these columns whole.
/// Errors ("quantization"): a part that reaches outside; rows that are not dense; another dtype than fp64, fp32, bf16
///         and fp16.
void decode_groups_(const at::Tensor& out, const GroupWeight& weight, int64_t row, int64_t column,
                    at::ScalarType rounds_to);

/// Packs 4-bit codes [rows, an even number], two per byte, the first in the upper half.
at::Tensor two_in_a_byte(const at::Tensor& codes);

}  // namespace colossal::ops
