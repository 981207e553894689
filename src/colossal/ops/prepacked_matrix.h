// A weight as inference multiplies by it: laid out once, when it is loaded, for products with one row or with many, in
// fp32, bf16, 8 bits of floating point with a scale an output, or codes of 8 or 4 bits with a scale a group of inputs.
//
//   const ops::PrepackedMatrix w = ops::PrepackedMatrix::of(weight, ops::PackedType::Bf16);        // [out, in]
//   const ops::PrepackedMatrix small(ops::round_to_codes(weight, {.bits = 4, .group = 128}));
//   const at::Tensor y = small.multiply(x, bias);                                                  // [..., out]
//
// What a row is multiplied to does not depend on the rows beside it, bit for bit: requests that share a batch do not
// see one another.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/ops/group_codes.h"

namespace colossal::ops {

struct PrepackedKernels;  // ops/prepacked_kernels.h

enum class PackedType { Float, Bf16, Fp8, Int8, Int4 };

/// Numbers:       Float: sums in fp32 of products of x in fp32. Bf16: of x rounded to bf16, products exact, sums in
///                fp32. Fp8: weights are rounded (row_codes.h); products and sums of x in fp32, then times the scale.
///                Codes: each group of a row of x becomes codes of 8 bits (-127 to 127) with a scale of its own;
///                products of codes are added exactly, groups in fp32.
/// Memory:        Float 4 bytes a number, Bf16 2, Fp8 1 and 4 an output, codes bits / 8 and 2 bytes a group and output
///                (4 with minima); outputs padded to 32, inputs to whole groups. In huge pages where the system has
///                them.
/// Thread safety: multiply() by any threads.
class PrepackedMatrix {
 public:
  /// weight [out, in], fp32 or bf16 on the CPU; Float, Bf16 or Fp8. Cost: one pass.
  /// Errors ("prepacked"): other shapes, dtypes, devices and types. ("quantization"): Fp8 of numbers that are not
  ///                       finite.
  static PrepackedMatrix of(const at::Tensor& weight, PackedType type);
  /// Errors ("prepacked"): those of GroupCodes::check().
  explicit PrepackedMatrix(const GroupCodes& codes);

  /// x [..., in] fp32 or bf16 on the CPU, rows dense, `bias` fp32 [out] or undefined -> [..., out] in the dtype of x.
  /// Cost: of few rows that of reading the weight once. Threads: ops/parallel.h.
  /// Errors ("prepacked"): other shapes, dtypes and devices.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  /// Multiplies with the given kernels: for tests of each instruction set.
  at::Tensor multiply_by(const PrepackedKernels& kernels, const at::Tensor& x, const at::Tensor& bias = {}) const;

  PackedType type() const { return type_; }
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t bytes() const { return panels_.numel(); }

 private:
  PrepackedMatrix(PackedType type, int64_t outputs, int64_t inputs, int64_t group, bool minima);
  void put_fp8(const at::Tensor& weight);
  char* panel(int64_t index) const;

  PackedType type_;
  int64_t outputs_, inputs_;
  int64_t padded_;          // inputs, in whole groups
  int64_t group_ = 0;       // of codes
  bool minima_ = false;     // of codes
  float scale_factor_ = 1;  // of the scales and minima that panels hold, a power of two
  int64_t panel_bytes_;
  at::Tensor panels_;  // uint8
};

}  // namespace colossal::ops
