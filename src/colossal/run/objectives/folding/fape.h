// The frame aligned point error, and side chains in the better of two namings of their atoms (Jumper et al. 2021,
// supplement, algorithms 26 and 28).
//
//   const at::Tensor backbone = fape_losses({frames, true_frames, mask}, {ca, true_ca, mask}, {});          // [B]
//   const SideChains truth = better_named(side_chains_of(atoms37, mask37, types, tables), places, types, tables);
//   const at::Tensor sides = side_chain_fape_losses(groups, places, truth, {});
//
// Positions are in Angstrom, in fp32 or fp64. No function waits for a device.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/geometry/residue_tables.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/ops/geometry/rigid.h"

namespace colossal::run {

/// Predicted and true frames [B, F].
struct ComparedFrames {
  ops::Rigid predicted, truth;
  at::Tensor mask;  ///< [B, F]
};

/// Predicted and true points [B, P, 3].
struct ComparedPoints {
  at::Tensor predicted, truth;
  at::Tensor mask;  ///< [B, P]
};

/// Options of fape_losses().
struct FapeOptions {
  double clamp = 10;  ///< largest error that counts, in Angstrom; 0 = no limit
  double scale = 10;  ///< Angstrom by which errors are divided
};

/// Returns for each chain the mean over frames i and points j of min(sqrt(|T_i^-1 x_j - T*_i^-1 x*_j|^2 + 1e-4), clamp)
/// / scale. A mirror image is no equal.
///
/// Gradient: of predicted frames and points.
/// Numbers:  1e-4 is added to both counts, as AlphaFold does.
/// Cost:     a product of [3 F, 7] and [7, P]; with gradients about 4 tensors [F, P] are kept.
at::Tensor fape_losses(const ComparedFrames& frames, const ComparedPoints& points, const FapeOptions& options);

/// The true frames of groups and places of atoms, in one naming.
struct SideChains {
  ops::GroupFrames groups;  ///< [B, N, 8]
  at::Tensor atoms14;       ///< [B, N, 14, 3]
  at::Tensor mask14;        ///< [B, N, 14]
};

/// Returns the side chains of atoms [B, N, 37, 3] with a mask [B, N, 37], as they are named.
SideChains side_chains_of(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                          const ops::ResidueTables& tables);

/// Returns 1 for each residue [B, N] whose atoms agree better with the prediction [B, N, 14, 3] in the other naming:
/// the sum over other atoms of differences of distances is less. Without a gradient.
/// Requires: a type renames atoms in slots 6 to 9 alone (D, E, F and Y do).
/// Memory:   slices of distances; on meta only the result.
at::Tensor other_naming_is_better(const at::Tensor& predicted14, const SideChains& truth, const at::Tensor& types,
                                  const ops::ResidueTables& tables);

/// Returns the truth with the better naming for each residue.
SideChains better_named(const SideChains& truth, const at::Tensor& predicted14, const at::Tensor& types,
                        const ops::ResidueTables& tables);

/// Returns the losses over all groups and atoms, for predicted groups [B, N, 8] and places [B, N, 14, 3].
at::Tensor side_chain_fape_losses(const ops::Rigid& groups, const at::Tensor& predicted14, const SideChains& truth,
                                  const FapeOptions& options);

}  // namespace colossal::run
