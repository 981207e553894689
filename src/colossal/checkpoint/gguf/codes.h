// Converts blocks of GGUF files to quantized values with one scale per group, which matrix products use directly
// (ops/products/prepacked_matrix.h).
#pragma once
#include <optional>

#include "colossal/formats/gguf_file.h"
#include "colossal/ops/products/group_codes.h"

namespace colossal::checkpoint {

/// Returns the matrix [rows, columns] of `blocks` in groups of 32. Supports Q8_0, Q4_0, Q4_1 and Q4_K, whose scales are
/// products of two values. Returns none for other types, for scales that are not finite, and for a Q8_0 with a value
/// -128, which GroupCodes cannot represent.
std::optional<ops::GroupCodes> codes_of_gguf(const formats::GgufType& type, const char* blocks, int64_t rows,
                                             int64_t columns);

}  // namespace colossal::checkpoint
