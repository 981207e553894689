// Rows of `colossal bench diffusion`: ranks that share the rows of a picture in the autoencoder, and ranks that split
// the hidden states of a model with two axes.
//
//   for (const DiffusionRow& row : rows_mode(2)) table.print_row({row.ranks, row.mode, row.what, ...});
//   const DiffusionRow half = two_axes_mode(4, "dsp").at(0), whole = two_axes_mode(4, "ulysses").at(0);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::cli {

/// Elements that all ranks together send in one piece of work, a row of the table.
struct DiffusionRow {
  int64_t ranks = 0;
  std::string mode;  ///< how the ranks divide the work: "rows", "tensor", "guidance", "dsp", "ulysses" or "ring"
  std::string what;  ///< the work, such as "decode 1024 px"
  int64_t sent = 0, formula = 0;
};

/// Decodes a picture of 1024 x 1024 pixels with the autoencoder of Stable Diffusion. Returns one row. Each rank
/// runs the decoder on tensors without data, and every element that it would send is counted.
/// Time: about 0.1 s a rank.
std::vector<DiffusionRow> rows_mode(int64_t ranks);

/// Runs the forward pass of a pair of STDiT blocks, over places and over frames, whose ranks split tokens by a mode of
/// parallel.sequence: "dsp", "ulysses" or "ring". Frames, places and heads divide by the ranks, which are threads of
/// this process. Returns one row. The formulas are those of docs/explanation/sequence-parallel.md.
/// Threads: sets LibTorch's number of threads to one for each rank. Time: some milliseconds a rank.
std::vector<DiffusionRow> two_axes_mode(int64_t ranks, const std::string& mode);

}  // namespace colossal::cli
