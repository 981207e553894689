// Losses of the heads of a folding model, and LDDT (Jumper et al. 2021, supplement, sections 1.9.1 and 1.9.6 to
// 1.9.10).
//
//   const Lddt lddt = lddt_of(ca, true_ca, mask);                                      // [B, N, 3], mask [B, N]
//   const at::Tensor of_head = plddt_losses(logits, lddt.residues, mask) * well_resolved(resolution);   // [B]
//   const at::Tensor loss = .01 * of_head + .3 * distogram_losses(pair_logits, cb, cb_mask);
//
// Each function returns a number for each chain, [B], and is differentiable in predictions. Masks are 0 or 1, in the
// dtype of positions or logits, which is fp32 or fp64. A padded residue has the mask 0 and changes no number. No
// function waits for a device.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/geometry/residue_tables.h"
#include "colossal/ops/geometry/rigid.h"

namespace colossal::run {

/// The local distance difference test of one point for each residue, without superposition (Mariani et al. 2013).
struct Lddt {
  at::Tensor residues;  ///< [B, N], 0 to 1; 1 for a residue without others near it
  at::Tensor chains;    ///< [B]: the share over all pairs of a chain
};

/// Compares points [B, N, 3]: pairs of other residues that are truly nearer than 15 Angstrom count, each as the mean
/// share of the limits .5, 1, 2 and 4 Angstrom that the difference of distances is below. Without a gradient.
Lddt lddt_of(const at::Tensor& points, const at::Tensor& true_points, const at::Tensor& mask);

/// Returns 1 for chains whose losses of pLDDT, PAE and resolved atoms count, because their resolution is from .1 to 3
/// Angstrom. Unknown resolutions are 0.
at::Tensor well_resolved(const at::Tensor& resolution);

// Losses of representations that ranks cut get the logits of some rows, from `first` on, and whole labels and masks.
// They divide by the count of all rows, so that the sum over ranks is the loss.

/// Cross entropy of the bins of pair distances. logits [B, R, N, 64]; points [B, N, 3] are true CB, CA of glycines.
at::Tensor distogram_losses(const at::Tensor& logits, const at::Tensor& true_points, const at::Tensor& mask,
                            int64_t first = 0);

/// Cross entropy of masked letters. logits [B, R, N, 23], letters [B, S, N] int64, chosen [B, S, N]: 1 = the letter was
/// masked. 0 if no letter was.
at::Tensor masked_msa_losses(const at::Tensor& logits, const at::Tensor& letters, const at::Tensor& chosen,
                             int64_t first = 0);

/// Cross entropy of the bins of LDDT. logits [B, N, bins], lddt [B, N] as Lddt::residues.
at::Tensor plddt_losses(const at::Tensor& logits, const at::Tensor& lddt, const at::Tensor& mask);

/// Cross entropy of the bins of |T_i^-1 x_j - T*_i^-1 x*_j|, whose points are the origins of the frames [B, N].
/// logits [B, R, N, 64]. The gradient is of logits alone.
at::Tensor pae_losses(const at::Tensor& logits, const ops::Rigid& frames, const ops::Rigid& true_frames,
                      const at::Tensor& mask, int64_t first = 0);

/// Cross entropy of which atoms are resolved. logits [B, N, 37], resolved [B, N, 37] and exists [B, N, 37]: 1 = the
/// type has the atom.
at::Tensor resolved_losses(const at::Tensor& logits, const at::Tensor& resolved, const at::Tensor& exists);

/// The true angles of side chains.
struct TrueChis {
  at::Tensor sin_cos;  ///< [B, N, 4, 2]
  at::Tensor mask;     ///< [B, N, 4]: 1 = the chi is known
};

/// .5 x mean min(|a - a*|^2, |a - a* turned by its period|^2) over known chis + .01 x mean | |raw| - 1 | over all
/// angles (algorithm 27). raw [B, N, 7, 2] as a layer computed them; mask [B, N] of residues.
at::Tensor chi_losses(const at::Tensor& raw, const TrueChis& truth, const at::Tensor& mask, const at::Tensor& types,
                      const ops::ResidueTables& tables);

}  // namespace colossal::run
