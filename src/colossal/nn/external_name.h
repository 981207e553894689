// How a Hugging Face folder names and stores what a model has as one parameter. Models say it, checkpoints read it:
//
//   {"blocks.0.attention.qkv.weight", {"h.0.q.weight", "h.0.k.weight", "h.0.v.weight"}}
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::nn {

/// Where a parameter is found in a Hugging Face folder: `parts` are concatenated along dimension 0 in the order of the
/// parameter's segments (one part: the whole). `transposed`: the file stores [in, out] where we store [out, in]
/// (GPT-2's Conv1D). `leading_ones`: dimensions of size 1 that the file's shape has in front of ours ([1, N, H] for a
/// table [N, H]).
struct ExternalName {
  std::string ours;
  std::vector<std::string> parts;
  bool transposed = false;
  int64_t leading_ones = 0;
};

}  // namespace colossal::nn
