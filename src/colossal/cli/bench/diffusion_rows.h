// The mode `rows` of `colossal bench diffusion`: ranks that share the rows of a picture in the autoencoder.
//
//   for (const DiffusionRow& row : rows_mode(2)) table.print_row({row.ranks, row.mode, row.what, ...});
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/cli/bench/diffusion_row.h"

namespace colossal::cli {

/// Decodes a picture of 1024 x 1024 pixels with the autoencoder of Stable Diffusion. Returns one row. Each rank runs the decoder on tensors without data, and every element that it would send is counted.
/// Time: about 0.1 s a rank.
std::vector<DiffusionRow> rows_mode(int64_t ranks);

}  // namespace colossal::cli
