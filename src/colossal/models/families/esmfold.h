// ESMFold (Lin et al. 2023, doi:10.1126/science.ade2574) folds a protein from its sequence alone: the hidden states of
// the language model ESM-2, a trunk of residues and pairs, and the structure module of AlphaFold 2. Its own keys, and
// its form in transformers (EsmForProteinFolding).
//
//   const ModelShape shape = built_in().resolve({.name = "esmfold-tiny"});
//   const FoldingHeads& heads = *model.folding;                        // models/folding/folding_model.h: the passes
//
// ModelShape::hidden, heads and ffn are those of ESM-2; `layers` are the blocks of the trunk, `dropout` is the trunk's.
// Model::blocks are the layers of ESM-2, a block that starts the trunk, the trunk, and the structure module. The chain
// is read between <cls> and <eos>. Padding follows the residues of a chain.
#pragma once
#include "colossal/models/folding/esmfold_sizes.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"

namespace colossal::models {

/// Returns the reader of transformers' folders.
HuggingFace esmfold_folder();

}  // namespace colossal::models
