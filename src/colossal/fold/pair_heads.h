// Heads of a folding model by rows, so that their logits never exist whole.
//
//   const at::Tensor plddt = lddt_by_rows(heads, end[heads.structure], 64);             // [N, A]
//   const ErrorsOfPairs found = errors_by_rows(heads, end[heads.pair], kept, true);     // found.errors [n, n]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/models/folding/folding_model.h"

namespace colossal::fold {

/// Returns the expected LDDT, 0 to 100, of the only row of a state [1, N, structure]: [N, A] for the A points of each
/// residue. Memory: logits of `rows` residues.
at::Tensor lddt_by_rows(const models::FoldingHeads& heads, const at::Tensor& structure, int64_t rows);

struct ErrorsOfPairs {
  at::Tensor ptm;       ///< a number: the predicted TM score of the kept residues
  at::Tensor errors{};  ///< [n, n] of the kept residues, in Angstrom; undefined = not wanted
};

/// Returns the confidences of pairs z [1, N, N, pair] for the residues `kept`, of which there are n. The model must
/// have the head FoldingHeads::errors.
/// Memory: N^2 numbers for each result, and logits of so many rows that they are as many numbers. It runs on meta.
ErrorsOfPairs errors_by_rows(const models::FoldingHeads& heads, const at::Tensor& pairs,
                             const std::vector<int64_t>& kept, bool keeps_errors);

}  // namespace colossal::fold
