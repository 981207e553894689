// Kernels for products with prepacked weights (prepacked_matrix.h), and the layout of these weights. The kernels are
// compiled once per instruction set from prepacked_kernel.h. This header must not include torch.
//
// A weight [out, in] is stored in panels of 32 outputs. A panel stores the elements of the same `step` inputs side by
// side for all 32 outputs. One vector of the widest instruction set then holds 16 outputs, for any number of rows to
// multiply:
//
//   Float   step 1   [in][32]
//   Bf16    step 2   [in / 2][32][2]
//   Fp8     step 1   [in][32] codes (e4m3), then 32 scales in fp32
//   Int8    step 4   a group: [group / 4][32][4] codes, then 32 scales (and 32 minima) in binary16
//   Int4    step 8   a group: [group / 8][32][4] bytes, inputs 0-3 in their lower halves, 4-7 in their upper ones, then
//                    as Int8
//
// The left operand is stored in tiles of up to kTileRows rows, [in / lane][rows][lane]. `lane` equals step, but is 4
// for Int4. Each element of a result is one chain of sums in the order of the inputs. It depends neither on the other
// rows nor on their number.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/ops/kernels.h"

namespace colossal::ops {

constexpr int64_t kPanelOutputs = 32;
constexpr int64_t kTileRows = 12;

/// Arguments of the product of a tile of rows with a panel.
struct PanelProduct {
  int64_t inputs = 0;   ///< elements of a tile row, padded to whole steps, for codes to whole groups
  int64_t group = 0;    ///< codes: number of inputs that share a scale
  bool minima = false;  ///< codes: each group of an output has a minimum in addition to its scale
  const void* panel = nullptr;
  const void* tile = nullptr;  ///< float (also for Fp8), Bf16 or int8_t
  /// Codes: [groups][rows], the tile's scales times the factor of the weight's scales.
  const float* scales = nullptr;
  const int32_t* sums = nullptr;    ///< codes: [groups][rows]: sums of the tile's codes
  const float* bias = nullptr;      ///< [columns]; null = no bias
  void* y = nullptr;                ///< [rows, columns], rows `stride` elements apart
  int64_t stride = 0, columns = 0;  ///< columns is at most kPanelOutputs
  bool narrow = false;              ///< true: y is Bf16, else float
};

struct PrepackedKernels {
  std::string_view name;
  /// Computes rows [0, rows) of the tile, at most kTileRows.
  using Multiply = void (*)(const PanelProduct& product, int64_t rows);
  Multiply multiply_float, multiply_bf16, multiply_fp8, multiply_int8, multiply_int4;
  /// Quantizes `inputs` elements, a multiple of `group`, to codes -127 to 127. Writes one scale and one sum of codes
  /// per group.
  void (*encode_row)(const float* x, int64_t inputs, int64_t group, int8_t* codes, float* scales, int32_t* sums);
};

/// Returns the fastest kernels of this machine within the calling thread's instruction set (ops/cpu.h).
const PrepackedKernels& prepacked_kernels();
/// Returns all kernels that this machine can run, for tests of each.
std::vector<const PrepackedKernels*> runnable_prepacked_kernels();

}  // namespace colossal::ops
