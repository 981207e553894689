// Residues: torsion angles of atoms, frames of rigid groups, and atoms placed by frames (Jumper et al. 2021,
// supplement, algorithm 24).
//
//   const ops::Torsions torsions = ops::torsions_of(atoms37, mask37, types, tables);     // [B, N, 7, 2]
//   const ops::Rigid groups = ops::group_frames(backbones, torsions.sin_cos, types, tables);    // [B, N, 8]
//   const at::Tensor places = ops::atoms14(groups, types, tables);                       // [B, N, 14, 3]
//   const at::Tensor all = ops::atoms37(places, types, tables);                          // [B, N, 37, 3]
//
// Positions are in Angstrom, in fp32 or fp64; types [..., N] are int64; masks have the dtype of positions. Results are
// differentiable in positions, frames and angles. No function waits for a device.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/geometry/residue_tables.h"
#include "colossal/ops/geometry/rigid.h"

namespace colossal::ops {

/// The angles pre-omega, phi, psi, chi1 to chi4 of residues. Psi is that of N, CA, C, O turned by pi.
struct Torsions {
  at::Tensor sin_cos;  ///< [..., N, 7, 2], sine first; zeros where four atoms are not apart
  at::Tensor other;    ///< the same in the other naming of atoms: chis with a period of pi are turned by pi
  at::Tensor mask;     ///< [..., N, 7]: 1 = all four atoms are there
};

/// Returns the angles of atoms [..., N, 37, 3] with a mask [..., N, 37]. Pre-omega and phi read the residue before; the
/// first residue has neither. `epsilon` is added to squared lengths; a larger one gives other numbers where a mask is
/// 0.
Torsions torsions_of(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                     const ResidueTables& tables, double epsilon = kTinySquare);

/// Returns the frames [..., N, 8] of the groups of residues with these backbones [..., N] and angles [..., N, 7, 2],
/// sine first, of length 1. Chi1 and the angles before it turn in the backbone's frame, each further chi in the frame
/// before it.
Rigid group_frames(const Rigid& backbones, const at::Tensor& sin_cos, const at::Tensor& types,
                   const ResidueTables& tables);

/// Returns the places of atoms [..., N, 14, 3] in frames [..., N, 8]; zeros for atoms that a type does not have.
at::Tensor atoms14(const Rigid& groups, const at::Tensor& types, const ResidueTables& tables);
/// Returns the same atoms [..., N, 37, 3] by name; zeros for atoms that a type does not have.
at::Tensor atoms37(const at::Tensor& atoms14, const at::Tensor& types, const ResidueTables& tables);
/// Returns atoms given by name, [..., N, 37, 3], in the slots of their types [..., N, 14, 3].
at::Tensor atoms14_of_names(const at::Tensor& atoms37, const at::Tensor& types, const ResidueTables& tables);

/// The frames of groups whose atoms are known.
struct GroupFrames {
  Rigid frames;     ///< [..., N, 8]; zeros as rotations of groups that three atoms do not determine
  Rigid other;      ///< the same in the other naming: groups of chis with a period of pi are turned by pi
  at::Tensor mask;  ///< [..., N, 8]: 1 = the type has the group, and its three atoms are there
};

/// Returns the frames of the groups of atoms [..., N, 37, 3] with a mask [..., N, 37]: backbone, psi and chis.
/// Pre-omega and phi have no atoms of their own, so their mask is 0.
GroupFrames frames_of_atoms(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                            const ResidueTables& tables);

/// A point for each residue, and whether it is known.
struct MaskedPoints {
  at::Tensor positions;  ///< [..., N, 3]
  at::Tensor mask;       ///< [..., N]
};

/// Returns CB of each residue, and CA of glycines.
MaskedPoints side_chain_points(const at::Tensor& atoms37, const at::Tensor& mask37, const at::Tensor& types,
                               const ResidueTables& tables);

/// Returns where CB is expected from N, CA and C [..., 3], as ESMFold computes it.
at::Tensor expected_cb(const at::Tensor& n, const at::Tensor& ca, const at::Tensor& c);

/// Ascending distances in Angstrom at equal steps: the limits of `count` + 1 bins.
struct DistanceLimits {
  double first = 0, last = 0;
  int64_t count = 0;

  /// Returns the limits [count].
  at::Tensor on(const at::TensorOptions& options) const;
};
/// Limits of recycled distances, whose bin 0 has no embedding in AlphaFold and is "near" in ESMFold; of distograms; of
/// errors of aligned points.
constexpr DistanceLimits kRecycledDistances{3.25, 20.75, 15}, kRecycledDistancesOfEsmFold{3.375, 21.375, 14},
    kDistogramLimits{2.3125, 21.6875, 63}, kErrorLimits{0, 31, 63};

/// Returns the bin of each pair of points [..., N, 3], which is the number of limits that the distance exceeds:
/// [..., N, N] int64. Without a gradient.
at::Tensor distance_bins(const at::Tensor& points, const DistanceLimits& limits);
/// Returns the bins of squared distances of any sizes. Without a gradient.
at::Tensor bins_of_squares(const at::Tensor& squares, const DistanceLimits& limits);
/// Returns the squared distances of points [..., N, 3] and [..., M, 3]: [..., N, M].
at::Tensor squared_distances(const at::Tensor& a, const at::Tensor& b);

}  // namespace colossal::ops
