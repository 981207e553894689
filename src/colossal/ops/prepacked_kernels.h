// Products with weights that were laid out for them once (prepacked_matrix.h): the interface between the layout and the
// kernels, which are compiled once per instruction set from prepacked_kernel.h. No torch here.
//
// A weight [out, in] lies in panels of 32 outputs. Within a panel the numbers of the same inputs lie together, 32
// outputs of `step` inputs each, so that a vector of the widest instruction set is 16 outputs, whatever the number of
// rows that it is multiplied by:
//
//   Float   step 1   [in][32]
//   Bf16    step 2   [in / 2][32][2]
//   Fp8     step 1   [in][32] codes (e4m3), then 32 scales in fp32
//   Int8    step 4   a group: [group / 4][32][4] codes, then 32 scales (and 32 minima) in binary16
//   Int4    step 8   a group: [group / 8][32][4] bytes, inputs 0-3 in their lower halves, 4-7 in their upper ones, then
//                    as Int8
//
// What is multiplied with it lies in tiles of up to kTileRows rows, [in / lane][rows][lane], lane as step, of Int4 4.
// Every element of a result is one chain of sums in the order of the inputs: it does not depend on which or how many
// rows are multiplied together.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/ops/kernels.h"

namespace colossal::ops {

constexpr int64_t kPanelOutputs = 32;
constexpr int64_t kTileRows = 12;

/// The rows of a tile times a panel.
struct PanelProduct {
  int64_t inputs = 0;   ///< of a row of the tile, padded to whole steps, of codes to whole groups
  int64_t group = 0;    ///< codes: inputs that share a scale
  bool minima = false;  ///< codes: each group of an output has a minimum beside its scale
  const void* panel = nullptr;
  const void* tile = nullptr;       ///< float (of Fp8 too), Bf16 or int8_t
  const float* scales = nullptr;    ///< codes: of the tile's, [groups][rows], times the factor of the weight's scales
  const int32_t* sums = nullptr;    ///< codes: of the tile's, [groups][rows]
  const float* bias = nullptr;      ///< [columns]; null: none
  void* y = nullptr;                ///< [rows, columns], `stride` numbers from row to row
  int64_t stride = 0, columns = 0;  ///< at most kPanelOutputs columns
  bool narrow = false;              ///< y is Bf16, else float
};

struct PrepackedKernels {
  std::string_view name;
  /// Rows [0, rows) of at most kTileRows.
  using Multiply = void (*)(const PanelProduct& product, int64_t rows);
  Multiply multiply_float, multiply_bf16, multiply_fp8, multiply_int8, multiply_int4;
  /// `inputs` numbers, a multiple of `group`, in codes of -127 to 127, a scale a group, and the groups' sums of codes.
  void (*encode_row)(const float* x, int64_t inputs, int64_t group, int8_t* codes, float* scales, int32_t* sums);
};

/// Returns the kernels that are fastest on this machine, within the calling thread's instruction set (ops/cpu.h).
const PrepackedKernels& prepacked_kernels();
/// All that this machine can run: for tests of each.
std::vector<const PrepackedKernels*> runnable_prepacked_kernels();

}  // namespace colossal::ops
