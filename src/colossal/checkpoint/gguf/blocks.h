// Converts the quantization blocks of GGUF files to fp32 and back.
//
// A block of Q4_0, Q5_0 or Q8_0 has 32 quantized values q and a scale: x = d q. A block of Q4_1 or Q5_1 also has a
// minimum: x = d q + m. A block of Q*_K has 256 quantized values in groups of 16 or 32. Each group has small integers s
// and m that multiply the block's scale and minimum: x = d s q (Q3_K, Q6_K) or x = d s q - d_min m (Q2_K, Q4_K, Q5_K).
// See: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
#pragma once
#include <cstdint>
#include <optional>

#include "colossal/formats/gguf_file.h"
#include "colossal/ops/products/group_codes.h"

namespace colossal::checkpoint {

/// Returns true for F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K and Q6_K.
bool can_decode(const formats::GgufType& type);
/// Returns true for F32, F16, BF16, Q4_0, Q8_0, Q4_K and Q6_K.
bool can_encode(const formats::GgufType& type);

/// Decodes `count` values, a whole number of blocks, to fp32. The results are bitwise equal to the Python package gguf.
/// `type` must be one that can be decoded.
void decode_gguf(const formats::GgufType& type, const char* blocks, int64_t count, float* numbers);

/// Encodes `count` values, all finite, to blocks. `type` must be one that can be encoded. F16 and BF16 are rounded to
/// even. Q4_0 and Q8_0 are bitwise equal to the Python package gguf. Each group of Q4_K and Q6_K uses the one of 17
/// candidate scales with the least weighted squared error; larger values weigh more.
/// Cost: several hundred operations per value for Q4_K and Q6_K.
void encode_gguf(const formats::GgufType& type, const float* numbers, int64_t count, char* blocks);

// Conversion to quantized values with one scale per group, which matrix products use directly
// (ops/products/prepacked_matrix.h).

/// Returns the matrix [rows, columns] of `blocks` in groups of 32. Supports Q8_0, Q4_0, Q4_1 and Q4_K, whose scales are
/// products of two values. Returns none for other types, and for scales that are not finite.
std::optional<ops::GroupCodes> codes_of_gguf(const formats::GgufType& type, const char* blocks, int64_t rows,
                                             int64_t columns);

}  // namespace colossal::checkpoint
