// Blocks of GGUF files as codes with a scale a group, for products with the codes themselves (ops/prepacked_matrix.h).
#pragma once
#include <optional>

#include "colossal/base/gguf_file.h"
#include "colossal/ops/group_codes.h"

namespace colossal::checkpoint {

/// The matrix [rows, columns] of `blocks`, in groups of 32: Q8_0, Q4_0, Q4_1 and Q4_K, whose scales are products of two
/// numbers. Nothing for other types, for scales that are not finite, and for a Q8_0 with a code -128, which GroupCodes
/// does not have.
std::optional<ops::GroupCodes> codes_of_gguf(const GgufType& type, const char* blocks, int64_t rows, int64_t columns);

}  // namespace colossal::checkpoint
