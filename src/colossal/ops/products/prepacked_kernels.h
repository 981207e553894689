// Kernels for products with prepacked weights (prepacked_matrix.h), and the layout of these weights. The kernels are
// compiled once per instruction set from prepacked_kernel.h. This header must not include torch.
//
// A weight [out, in] is stored in panels of 32 outputs. A panel stores the elements of the same `step` inputs side by
// side for all 32 outputs. One vector of the widest instruction set then holds 16 outputs, for any number of rows to
// multiply:
//
//   Float   step 1   [in][32]
//   Bf16    step 2   [in / 2][32][2]
//   Fp8     step 2   [in][32] codes (e4m3), then 32 scales in fp32
//   Int8    step 4   a group: [group / 4][32][4] codes, then 32 scales (and 32 minima) in binary16
//   Int4    step 8   a group: [group / 8][32][4] bytes, inputs 0-3 in their lower halves, 4-7 in their upper ones, then
//                    as Int8
//
// The left operand is stored in blocks of rows, as the RowLayout of a table says. Each element of a result is one chain
// of sums in an order of the inputs that the table fixes. It depends neither on the other rows nor on their number.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/ops/kernels.h"

namespace colossal::ops {

constexpr int64_t kPanelOutputs = 32;

/// How a table reads a block of rows of the left operand.
struct RowLayout {
  int64_t rows = 12;  ///< most rows of a block; the last block of an operand has the rest
  /// false: [in / lane][rows][lane], where `lane` is 1 for fp32, 2 for bf16 and 4 for codes. true: [rows][in].
  bool by_row = false;
  bool widened = false;  ///< Bf16: elements are rounded to bf16 and stored as fp32, and `lane` is 1
};

/// Arguments of the product of a block of rows with a panel.
struct PanelProduct {
  int64_t inputs = 0;   ///< elements of a row, padded to whole steps, for codes to whole groups
  int64_t group = 0;    ///< codes: number of inputs that share a scale
  bool minima = false;  ///< codes: each group of an output has a minimum in addition to its scale
  const void* panel = nullptr;
  const void* block = nullptr;  ///< float (also for widened rows), Bf16 or int8_t
  /// Codes: [groups][rows], the block's scales times the factor of the weight's scales.
  const float* scales = nullptr;
  const int32_t* sums = nullptr;    ///< codes: [groups][rows]: sums of the block's codes
  const float* bias = nullptr;      ///< [columns]; null = no bias
  void* y = nullptr;                ///< [rows, columns], rows `stride` elements apart
  int64_t stride = 0, columns = 0;  ///< columns is at most kPanelOutputs
  bool narrow = false;              ///< true: y is Bf16, else float
};

/// Factor of rows in fp32 that are multiplied with fp8 weights: see SingleFp8. Rows of 2^63 and more overflow.
constexpr float kFp8RowFactor = 0x1p64f;

/// Rows to write in the layout of a block of rows, or in that of a panel.
struct RowsToLayOut {
  const void* x = nullptr;     ///< the first row
  Narrow type = Narrow::None;  ///< of x; None = float. Ignored where x has codes, one a byte
  int64_t stride = 0;          ///< from row to row, in bytes
  int64_t rows = 0;
  int64_t inputs = 0, padded = 0;  ///< elements of a row of x and of the layout, where those past `inputs` are 0
  void* out = nullptr;             ///< place of the first row
  int64_t pitch = 0;               ///< rows of the layout, of which these are some; `rows` if by_row
  bool by_row = false;             ///< as RowLayout::by_row
  int64_t group = 0;               ///< lay_out_codes: inputs that share a scale
  float factor = 1;                ///< lay_out_float: factor of the numbers; lay_out_codes: factor of the scales
  /// lay_out_codes: [groups][pitch], place of the first row. encode_int8 and encode_e4m3: [rows].
  float* scales = nullptr;
  int32_t* sums = nullptr;  ///< lay_out_codes: as scales, for the sums of codes
};

struct PrepackedKernels {
  std::string_view name;                                 ///< ops::name() of the instruction set
  RowLayout float_rows, bf16_rows, fp8_rows, code_rows;  ///< fp8_rows: in fp32, and in bf16 for multiply_fp8_bf16
  /// Computes rows [0, rows) of the block, at most the `rows` of its layout.
  using Multiply = void (*)(const PanelProduct& product, int64_t rows);
  Multiply multiply_float, multiply_bf16, multiply_fp8, multiply_int8, multiply_int4;
  Multiply multiply_fp8_bf16 = nullptr;  ///< Fp8 with rows in bf16; null = such rows are widened to fp32
  /// Write rows of numbers as fp32; rounded to bf16, as fp32; as bf16; as codes -127 to 127, with a scale and a sum of
  /// codes per group.
  using LayOut = void (*)(const RowsToLayOut& rows);
  LayOut lay_out_float, lay_out_widened, lay_out_bf16, lay_out_codes;
  /// Write codes of a weight for a panel: those of Int8, and those of Int4.
  LayOut lay_out_bytes, lay_out_halves;
  /// Write rows of numbers as codes [rows][inputs] of int8 or e4m3, with a scale per row: see row_codes.h.
  LayOut encode_int8, encode_e4m3;
};

/// Multiplies bf16 numbers and codes by AMX tiles. Requires the system's permission (ops/tile_permission.h).
extern const PrepackedKernels prepacked_amx;
/// The bodies of prepacked_amx with tiles in plain C++ (tiles.h): for tests on machines without AMX, never selected.
extern const PrepackedKernels prepacked_software_tiles;

/// Returns the fastest kernels of this machine within the calling thread's instruction set (ops/cpu.h).
const PrepackedKernels& prepacked_kernels();
/// Returns the kernels of every instruction set that this machine can run, Portable first, for tests of each.
std::vector<const PrepackedKernels*> runnable_prepacked_kernels();

}  // namespace colossal::ops
