// The terms of the loss of chains, from the end of a folding model and the true atoms (Jumper et al. 2021, supplement,
// section 1.9).
//
//   const FoldingTerms terms = folding_terms(heads, end, batch, {.weights = keys.weights, .clamp = .9});
//   const at::Tensor loss = (terms.losses * counts).sum();
//
// The batch has the fields of models/folding/folding_model.h and the labels `all_atom_positions` [B, N, 37, 3],
// `all_atom_mask` [B, N, 37] and `resolution` [B]; a model with a head of letters also needs `true_msa` [B, S, N] and
// `bert_mask` [B, S, N]. Atoms that are missing leave every term. Padded residues, whose seq_mask is 0, change no
// number.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "colossal/models/folding/folding_model.h"
#include "colossal/run/objectives/folding/folding_keys.h"

namespace colossal::run {

/// Returns the weights with those of the model in place of -1.
FoldingWeights weights_for(FoldingWeights weights, const models::FoldingHeads& heads);

/// Returns a head that a weight above 0 needs and the model lacks; empty = none.
std::string missing_head(const FoldingWeights& weights, const models::FoldingHeads& heads);

/// Options of folding_terms().
struct FoldingLoss {
  FoldingWeights weights{};
  double clamp = .9;  ///< FoldingKeys::clamp
};

/// Numbers of each chain, [B], fp32 at least.
struct FoldingTerms {
  at::Tensor losses;   ///< the weighted sum of the terms, times the square root of the number of residues
  at::Tensor fape;     ///< of the backbone in the last layer, clamped at 10 Angstrom, / 10; without a gradient
  at::Tensor lddt_ca;  ///< of the last layer, 0 to 1; without a gradient
};

/// Computes the terms whose weight is not 0. `end`: the states after Model::norm.
/// Gradient: of the states, and of the parameters of heads. Memory: tensors [B L, N, N] for L layers, and the logits of
/// pairs [B, N, N, 64].
FoldingTerms folding_terms(const models::FoldingHeads& heads, const models::States& end, const tensor::Batch& batch,
                           const FoldingLoss& loss);

}  // namespace colossal::run
