// The heads of AlphaFold 2 (Jumper et al. 2021, supplement, section 1.9).
//
//   FoldingHeads heads{.pair = 0, .alignment = 1, ...};
//   add_alphafold_heads(heads, {.alignment = 256, .pair = 128, .structure = 384}, make);
#pragma once
#include <cstdint>

#include "colossal/models/folding/folding_model.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

/// Sizes of the heads.
struct AlphaFoldHeadSizes {
  int64_t alignment = 256, pair = 128, structure = 384;  ///< features of m, z and s
  int64_t confidence = 128;                              ///< features inside the head of LDDT
  bool errors = false;                                   ///< whether there is a head of errors of aligned points
};

/// Sets the functions of `heads`. Parameters: head.plddt.{layer_norm,linear_1,linear_2,linear_3},
/// head.distogram.linear, head.masked_msa.linear, head.experimentally_resolved.linear, and head.tm.linear if there is
/// one for errors. The last layer of each head starts at 0.
void add_alphafold_heads(FoldingHeads& heads, const AlphaFoldHeadSizes& sizes, nn::Layers& make);

}  // namespace colossal::models
