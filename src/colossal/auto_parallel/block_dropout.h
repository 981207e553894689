// Dropout on a block of a tensor that the axes of a mesh divide.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::automatic {

/// Drops elements of a block as ops::dropout drops those of the whole tensor of sizes `shape`. The block begins at
/// `start`. An element is dropped by its index in the whole tensor, so all blocks together are dropped as in one
/// process. Cost: one call of ops::dropout for each run of rows that begin at equal distances; that is one call unless
/// two inner dimensions are divided.
at::Tensor dropout_of_block(const at::Tensor& block, double probability, uint64_t seed,
                            const std::vector<int64_t>& shape, const std::vector<int64_t>& start);

}  // namespace colossal::automatic
