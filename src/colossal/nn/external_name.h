// How a Hugging Face folder names and stores what a model has as one parameter. Models declare it; checkpoints read it:
//
//   {"blocks.0.attention.qkv.weight", {"h.0.q.weight", "h.0.k.weight", "h.0.v.weight"}}
//
// A folder may also store in one tensor what a model has as several, or in another order. The next example has 2 heads
// of 4 features; the file stores q, k and v of the first head, then q, k and v of the second:
//
//   {"blocks.0.attention.qkv.weight", {{fused, 0, 4}, {fused, 12, 4},      // q of both
//                                      {fused, 4, 4}, {fused, 16, 4},      // k
//                                      {fused, 8, 4}, {fused, 20, 4}}}     // v
//
// A stack has an entry for each index of dimension 0, such as an expert. The folder stores each entry in tensors of its
// own, and `{}` in their names is the index. Other folders have the whole stack as one tensor, `joint`:
//
//   {.ours = "blocks.0.mlp.experts.gate_up.weight",                               // [experts, gate and up, hidden]
//    .parts = {"h.0.experts.{}.gate.weight", "h.0.experts.{}.up.weight"},         // of each expert
//    .stacked = true, .joint = "h.0.experts.gate_up"}
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace colossal::nn {

/// A whole tensor of a folder, or `count` rows of it along dimension 0: first, first + stride, and so on. If the tensor
/// is transposed, these are rows of the transposed tensor.
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

/// The place of a parameter in a Hugging Face folder. `parts` are concatenated along dimension 0. Either all parts are
/// whole tensors, in the order of the parameter's segments (one part: the whole parameter), or all parts give the rows
/// of a tensor. Rows of one tensor may belong to several parameters. Together these must cover all of its rows, each
/// once, because an export must write the whole tensor.
/// `transposed`: the file stores [in, out] where the model stores [out, in] (GPT-2's Conv1D).
/// `leading_ones`: number of dimensions of size 1 at the front of the file's shape ([1, N, H] for a table [N, H]).
/// `stacked`: each index of dimension 0 is stored separately. `parts` are whole tensors without dimension 0, whose
/// names have `{}` in place of the index; they are concatenated along the parameter's dimension 1, in the order of its
/// segments there. If instead the one part is a name without `{}`, that tensor is the whole stack.
/// `joint`: name of one tensor that holds the whole stack in some folders; empty = none. Imports read either form,
/// exports write `parts`. A stack is neither transposed nor has leading ones.
struct ExternalName {
  std::string ours;
  std::vector<ExternalRows> parts;
  bool transposed = false;
  int64_t leading_ones = 0;
  bool stacked = false;
  std::string joint{};
};

/// A tensor that a folder may store in addition to the original, or instead of it. The values of both must be equal.
struct ExternalCopy {
  std::string name, original;
  std::string reason;  ///< why both are one parameter: "REASON makes them one weight"
  std::string remedy;  ///< remedy for the user if they differ
};

}  // namespace colossal::nn
