// How a Hugging Face folder names and stores what a model has as one parameter. Models say it, checkpoints read it:
//
//   {"blocks.0.attention.qkv.weight", {"h.0.q.weight", "h.0.k.weight", "h.0.v.weight"}}
//
// Or a folder has in one tensor what lies apart in ours, or in another order. Of heads of 4 features, whose q, k and v
// the file has one behind the other for each of 2 heads:
//
//   {"blocks.0.attention.qkv.weight", {{fused, 0, 4}, {fused, 12, 4},      // q of both
//                                      {fused, 4, 4}, {fused, 16, 4},      // k
//                                      {fused, 8, 4}, {fused, 20, 4}}}     // v
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace colossal::nn {

/// A tensor of a folder, or of its dimension 0 (after it was transposed, where it is) some rows: first, first + stride,
/// and so on, `count` of them.
struct ExternalRows {
  ExternalRows(const char* whole) : name(whole) {}
  ExternalRows(std::string whole) : name(std::move(whole)) {}
  ExternalRows(std::string tensor, int64_t first, int64_t count, int64_t stride = 1)
      : name(std::move(tensor)), first(first), count(count), stride(stride) {}

  bool is_whole() const { return count < 0; }
  bool operator==(const ExternalRows&) const = default;

  std::string name;
  int64_t first = 0, count = -1, stride = 1;
};

/// Where a parameter is found in a Hugging Face folder: `parts` are concatenated along dimension 0. Either all of them
/// are whole tensors, in the order of the parameter's segments (one part: the whole); or all say which rows of a tensor
/// they are. Rows of one tensor may be of several parameters; together they are all of its rows, each once, so that an
/// export knows what to write.
/// `transposed`: the file stores [in, out] where we store [out, in] (GPT-2's Conv1D). `leading_ones`: dimensions of
/// size 1 that the file's shape has in front of ours ([1, N, H] for a table [N, H]).
struct ExternalName {
  std::string ours;
  std::vector<ExternalRows> parts;
  bool transposed = false;
  int64_t leading_ones = 0;
};

/// A tensor that a folder may hold twice. The values of both must be equal.
struct ExternalCopy {
  std::string name, original;
  std::string reason;  ///< why both are one parameter: "REASON makes them one weight"
  std::string remedy;  ///< what to do if they differ
};

}  // namespace colossal::nn
