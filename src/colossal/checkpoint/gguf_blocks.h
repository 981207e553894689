// The blocks in which GGUF files store numbers, to fp32 and back.
//
// A block of Q4_0, Q5_0, Q8_0 is 32 codes and a scale: x = d q; of Q4_1 and Q5_1 with a minimum: x = d q + m. A block
// of Q*_K is 256 codes in groups of 16 or 32, each with small integers s and m that scale what the block has: x = d s q
// (Q3_K, Q6_K) or x = d s q - d_min m (Q2_K, Q4_K, Q5_K).
// See: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
#pragma once
#include <cstdint>

#include "colossal/base/gguf_file.h"

namespace colossal::checkpoint {

/// F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
bool can_decode(const GgufType& type);
/// F32, F16, BF16, Q4_0, Q8_0, Q4_K, Q6_K.
bool can_encode(const GgufType& type);

/// `count` numbers, whole blocks, of `blocks` as fp32: bit for bit those of the Python package gguf. `type` is one that
/// can be decoded.
void decode_gguf(const GgufType& type, const char* blocks, int64_t count, float* numbers);

/// The blocks of `count` numbers, all finite. `type` is one that can be encoded. F16 and BF16 are rounded to even; Q4_0
/// and Q8_0 are bit for bit those of the Python package gguf. Of Q4_K and Q6_K the scales are those of 17 candidates a
/// group that leave the least squared error, in which larger numbers weigh more.
/// Cost: Q4_K and Q6_K some hundred operations a number.
void encode_gguf(const GgufType& type, const float* numbers, int64_t count, char* blocks);

}  // namespace colossal::checkpoint
