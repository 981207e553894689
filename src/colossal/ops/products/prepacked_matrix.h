// A weight in the layout that inference multiplies fastest. It is packed once, after loading, for products with one row
// or with many. Types: fp32, bf16, 8-bit floating point with one scale per output, or 8- or 4-bit codes with one scale
// per group of inputs.
//
//   const ops::PrepackedMatrix w = ops::PrepackedMatrix::of(weight, ops::PackedType::Bf16);        // [out, in]
//   const ops::PrepackedMatrix small(ops::round_to_codes(weight, {.bits = 4, .group = 128}));
//   const at::Tensor y = small.multiply(x, bias);                                                  // [..., out]
//
// The result of a row is bitwise independent of the other rows, so requests in a batch do not influence one another.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/products/group_codes.h"

namespace colossal::ops {

struct PrepackedKernels;  // ops/products/prepacked_kernels.h
class PrepackedRows;      // ops/products/prepacked_rows.h

enum class PackedType { Float, Bf16, Fp8, Int8, Int4 };

/// Numbers:       Float: fp32 products and sums. Bf16: x is rounded to bf16; products are exact, sums in fp32. Fp8: the
///                weight is rounded (row_codes.h); products with x are exact if it is in bf16, sums in fp32, then times
///                the scale. Int8, Int4:
///                each group of a row of x is quantized to 8 bits (-127 to 127) with its own scale; products of codes
///                are summed exactly, groups in fp32.
/// Memory:        Float takes 4 bytes per element, Bf16 2, Fp8 1 and 4 per output. Codes take bits / 8 per element and
///                2 bytes per group and output (4 with minima). Outputs are padded to 32, inputs to whole groups. The
///                memory is in huge pages if the system has them.
/// Shapes:        a weight on meta that stands for the CPU (tensor::MeantDevice) gives a matrix that multiplies x on
///                meta. It has the memory and announces the products of one with values.
/// Thread safety: any threads may call multiply().
class PrepackedMatrix {
 public:
  /// Packs weight [out, in], fp32, bf16 or fp16 on the CPU, as Float, Bf16 or Fp8. It is read in place, over threads.
  /// Cost: one pass, without a copy if its elements are dense in each row and the type is not Fp8.
  /// Errors ("prepacked"): other shapes, dtypes, devices and types.
  /// Errors ("quantization"): Fp8 for a weight with elements that are not finite.
  static PrepackedMatrix of(const at::Tensor& weight, PackedType type);
  /// Packs a weight whose rows several tensors [rows, in] hold, one after the other.
  static PrepackedMatrix of(const std::vector<at::Tensor>& parts, PackedType type);
  /// Packs other values of the same weight into the same memory, as of() does for Float or Bf16.
  /// Errors ("prepacked"): those of of(); another shape; another type.
  void put(const std::vector<at::Tensor>& parts);
  /// Packs quantized values. Errors ("prepacked"): the errors of GroupCodes::check().
  explicit PrepackedMatrix(const GroupCodes& codes);

  /// Returns x weightT + bias: [..., out] in the dtype of x. x [..., in] is fp32 or bf16 on the CPU with dense rows;
  /// `bias` is fp32 [out] or undefined.
  /// Cost: with few rows, one read of the weight. Threads: the team of ops/thread_team.h.
  /// Errors ("prepacked"): other shapes, dtypes and devices.
  at::Tensor multiply(const at::Tensor& x, const at::Tensor& bias = {}) const;
  /// Multiplies with the given kernels: for tests of each instruction set.
  at::Tensor multiply_by(const PrepackedKernels& kernels, const at::Tensor& x, const at::Tensor& bias = {}) const;

  /// Returns y [R, out] in the dtype of x [R, in]: rows ends[e - 1] to ends[e] of x are multiplied with *matrices[e],
  /// which is not read, and may be null, if it has no rows. Each row equals that of multiply() bit by bit.
  /// Cost: one read of each matrix that has rows, in one loop of the team for all of them.
  /// Errors ("prepacked"): those of multiply(); matrices of several shapes or types; ends that do not fit.
  static at::Tensor multiply_groups(const std::vector<const PrepackedMatrix*>& matrices, const at::Tensor& x,
                                    const std::vector<int64_t>& ends);

  /// Returns x weightT + bias as multiply() of of(weight), packed for this product alone, in the dtype of the weight.
  /// Cost: a pass over the weight more than multiply(). Errors ("prepacked"): those of both.
  static at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

  PackedType type() const { return type_; }
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  int64_t bytes() const { return panels_.numel(); }

 private:
  PrepackedMatrix(PackedType type, int64_t outputs, int64_t inputs, int64_t group, bool minima, bool has_values);
  void put_fp8(const at::Tensor& weight);
  char* panel(int64_t index) const;
  int64_t panels() const;
  void check_rows(const at::Tensor& x) const;
  struct Work;
  at::Tensor lay_out_shapes(const at::Tensor& x, const PrepackedKernels& kernels) const;
  void multiply_panel(int64_t index, const PrepackedKernels& kernels, const Work& work) const;
  static void run(const std::vector<Work>& all, const PrepackedKernels& kernels);

  PackedType type_;
  int64_t outputs_, inputs_;
  int64_t padded_;          // number of inputs, padded to whole groups
  int64_t group_ = 0;       // codes: inputs per group
  bool minima_ = false;     // codes: the weight has minima
  float scale_factor_ = 1;  // factor of the stored scales and minima, a power of two
  int64_t panel_bytes_;
  at::Tensor panels_;  // uint8; on meta = shapes alone
};

}  // namespace colossal::ops
