// Table of the products with panels; see prepacked_kernels.h. The translation unit of each instruction set includes this
// header and names its table, COLOSSAL_PREPACKED.
#pragma once
#include "colossal/ops/products/panel_codes.h"
#include "colossal/ops/products/panel_numbers.h"
#include "colossal/ops/products/row_encoding.h"

namespace colossal::ops {

extern const PrepackedKernels COLOSSAL_PREPACKED;
const PrepackedKernels COLOSSAL_PREPACKED{.name = COLOSSAL_PREPACKED_NAME,
                                          .bf16_rows = Pairs::kLayout,
                                          .multiply_float = multiply_numbers<Single>,
                                          .multiply_bf16 = multiply_numbers<Pairs>,
                                          .multiply_fp8 = multiply_numbers<SingleFp8>,
                                          .multiply_int8 = multiply_codes<8>,
                                          .multiply_int4 = multiply_codes<4>,
                                          .lay_out_float = lay_out_float,
                                          .lay_out_widened = lay_out_widened,
                                          .lay_out_bf16 = lay_out_bf16,
                                          .lay_out_codes = lay_out_codes,
                                          .lay_out_bytes = lay_out_bytes,
                                          .lay_out_halves = lay_out_halves};

}  // namespace colossal::ops
