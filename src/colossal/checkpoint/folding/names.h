// The names of AlphaFold 2's weights in the files of AlphaFold (.npz) and OpenFold (.pt), as those that OpenFold has
// today.
//
//   place_of_alphafold("alphafold/alphafold_iteration/evoformer/evoformer_iteration/pair_transition/transition1//bias")
//       // {.name = "evoformer.blocks.{}.pair_stack.pair_transition.linear_1.bias", .stacked = true, ...}
//   openfold_name("model.evoformer.blocks.3.core.tri_mul_out.linear_z.bias")
//       // "evoformer.blocks.3.pair_stack.tri_mul_out.linear_z.bias"
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace colossal::checkpoint {

/// How AlphaFold stores a tensor that OpenFold stores as a matrix [out, in] or a vector.
enum class AlphaFoldForm : uint8_t {
  Vector,      ///< of any dimensions, which are one here: the bias [heads, width] of a gate
  InputFirst,  ///< [in, ...out]: a query [in, heads, width]
  OutputLast,  ///< [...in, out]: a linear layer [in, out], the last layer of attention [heads, width, out]
};

/// Where a tensor of AlphaFold belongs.
struct AlphaFoldPlace {
  std::string name;      ///< in OpenFold. If `stacked`, `{}` in it is the number of the block
  bool stacked = false;  ///< dimension 0 counts the blocks of a stack
  AlphaFoldForm form = AlphaFoldForm::Vector;
};

/// Returns true for the name of a tensor of AlphaFold: it begins with the name of its outermost module.
bool is_alphafold_name(const std::string& name);

/// Returns the place of a tensor, "module//name"; none = the monomer has no such tensor. Triangle multiplications of
/// "incoming" edges have left and right exchanged: AlphaFold's left is OpenFold's b.
std::optional<AlphaFoldPlace> place_of_alphafold(const std::string& name);

/// Returns the present name of a tensor of OpenFold: without the prefix `model.` of trainers, and renamed if an older
/// version wrote it.
std::string openfold_name(std::string name);

}  // namespace colossal::checkpoint
