// Confidences that the heads of a folding model predict, from their logits.
//
//   const at::Tensor of_residues = plddt(lddt_logits);                                  // [B, N, 50] -> [B, N]
//   const at::Tensor errors = expected_errors(pae_logits);                              // [B, N, N, 64] -> [B, N, N]
//   const at::Tensor ptm = predicted_tm(tm_terms(pae_logits, mask), mask.unsqueeze(2) * mask.unsqueeze(1));   // [B]
//
// Results are fp32 at least. Functions of logits are elementwise over all but their last dimension, so rows of pairs
// can be computed one after another. No function waits for a device.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::models {

/// Returns the expected LDDT, 0 to 100, of logits [..., bins] whose bins divide that range evenly.
at::Tensor plddt(const at::Tensor& logits);

/// Returns the expected error of aligned points in Angstrom, of logits [..., 64] with bin centres .25 to 31.75.
at::Tensor expected_errors(const at::Tensor& logits);

/// Returns E[1 / (1 + e^2 / d0^2)] of each pair, for logits [B, rows, N, 64], d0 = 1.24 (max(n, 19) - 15)^(1/3) - 1.8,
/// n = the number of residues of a chain, the sum of its mask [B, N] (Zhang and Skolnick 2004).
at::Tensor tm_terms(const at::Tensor& logits, const at::Tensor& mask);

/// Returns the predicted TM score [B]: the largest mean over j of terms [B, N, N], with weights [B, N, N]. Weights are
/// 1 for pairs of residues; for ipTM for those of different chains. Rows without weights count 0.
at::Tensor predicted_tm(const at::Tensor& terms, const at::Tensor& weights);

}  // namespace colossal::models
