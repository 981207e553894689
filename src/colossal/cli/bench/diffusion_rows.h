// The mode `rows` of `colossal bench diffusion`: ranks that share the rows of a picture in the autoencoder.
//
//   for (const DiffusionRow& row : rows_mode(2)) table.print_row({row.ranks, row.mode, row.what, ...});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::cli {

/// Elements that all ranks together send in one piece of work, a row of the table.
struct DiffusionRow {
  int64_t ranks = 0;
  std::string mode;  ///< how the ranks divide the work: "rows", "tensor" or "guidance"
  std::string what;  ///< the work, such as "decode 1024 px"
  int64_t sent = 0, formula = 0;
};

/// Decodes a picture of 1024 x 1024 pixels with the autoencoder of Stable Diffusion. Returns one row. Each rank
/// runs the decoder on tensors without data, and every element that it would send is counted.
/// Time: about 0.1 s a rank.
std::vector<DiffusionRow> rows_mode(int64_t ranks);

}  // namespace colossal::cli
