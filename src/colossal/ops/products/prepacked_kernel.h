// Table of the products with panels; see prepacked_kernels.h. The translation unit of each instruction set includes
// this header and names its table, COLOSSAL_PREPACKED. If the unit defines COLOSSAL_PREPACKED_BY_TILES, tiles multiply
// bf16 numbers and codes.
#pragma once
#include "colossal/ops/products/panel_codes.h"
#include "colossal/ops/products/panel_numbers.h"
#include "colossal/ops/products/row_encoding.h"
#if defined(COLOSSAL_PREPACKED_BY_TILES)
#include "colossal/ops/products/tile_kernel.h"
#endif

namespace colossal::ops {
namespace {

#if defined(__AVX512BF16__)
constexpr PrepackedKernels::Multiply kMultiplyFp8Bf16 = multiply_numbers<PairsFp8>;
#else
constexpr PrepackedKernels::Multiply kMultiplyFp8Bf16 = nullptr;
#endif

constexpr PrepackedKernels kVectorKernels{.name = COLOSSAL_PREPACKED_NAME,
                                          .bf16_rows = Pairs::kLayout,
                                          .multiply_float = multiply_numbers<Single>,
                                          .multiply_bf16 = multiply_numbers<Pairs>,
                                          .multiply_fp8 = multiply_numbers<SingleFp8>,
                                          .multiply_int8 = multiply_codes<8>,
                                          .multiply_int4 = multiply_codes<4>,
                                          .multiply_fp8_bf16 = kMultiplyFp8Bf16,
                                          .lay_out_float = lay_out_float,
                                          .lay_out_widened = lay_out_widened,
                                          .lay_out_bf16 = lay_out_bf16,
                                          .lay_out_codes = lay_out_codes,
                                          .lay_out_bytes = lay_out_bytes,
                                          .lay_out_halves = lay_out_halves,
                                          .encode_int8 = encode_int8,
                                          .encode_e4m3 = encode_e4m3};

#if defined(COLOSSAL_PREPACKED_BY_TILES)
constexpr PrepackedKernels with_tiles(PrepackedKernels table) {
  table.bf16_rows = table.code_rows = {.rows = kTileBlockRows, .by_row = true};
  table.multiply_bf16 = multiply_pairs_by_tiles;
  table.multiply_int8 = multiply_codes_by_tiles<8>;
  table.multiply_int4 = multiply_codes_by_tiles<4>;
  return table;
}
#else
constexpr PrepackedKernels with_tiles(PrepackedKernels table) { return table; }
#endif

}  // namespace

extern const PrepackedKernels COLOSSAL_PREPACKED;
const PrepackedKernels COLOSSAL_PREPACKED = with_tiles(kVectorKernels);

}  // namespace colossal::ops
