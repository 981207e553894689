// Violations of the stereochemistry of a predicted structure (Jumper et al. 2021, supplement, section 1.9.11): bonds
// between residues, clashes between them, distances within them.
//
//   const PredictedChain chain{.places = atoms14, .exists = exists, .types = types, .index = index};
//   const BondViolations bonds = bond_violations(chain, tables);
//   const at::Tensor loss = violation_losses(chain, tables);                                      // [B]
//
// Positions are in Angstrom, in fp32 or fp64. No function waits for a device.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/geometry/residue_tables.h"

namespace colossal::run {

/// A predicted structure.
struct PredictedChain {
  at::Tensor places;  ///< [B, N, 14, 3]
  at::Tensor exists;  ///< [B, N, 14]: 1 = the type has the atom; 0 in padding
  at::Tensor types;   ///< [B, N] int64
  at::Tensor index;   ///< [B, N] int64, the number of each residue; a bond joins one to the next number
};

/// Tolerances: 12 standard deviations of bonds, 1.5 Angstrom of overlap.
struct ViolationTolerance {
  double deviations = 12, overlap = 1.5;
};

/// Errors beyond the tolerance between each residue and the next, as means over pairs that have the atoms, [B].
struct BondViolations {
  at::Tensor length;    ///< of C-N, in Angstrom
  at::Tensor ca_c_n;    ///< of the cosine of CA-C-N; its deviation is that of the length, as in AlphaFold
  at::Tensor c_n_ca;    ///< of the cosine of C-N-CA
  at::Tensor residues;  ///< [B, N]: 1 = a bond of the residue is beyond the tolerance
};
BondViolations bond_violations(const PredictedChain& chain, const ops::ResidueTables& tables,
                               const ViolationTolerance& tolerance = {});

/// Overlaps of atoms.
struct Clashes {
  at::Tensor mean;   ///< [B], Angstrom: over all pairs that could clash; without a gradient
  at::Tensor sum;    ///< [B], Angstrom: over all atoms, so each pair counts twice; differentiable in places
  at::Tensor atoms;  ///< [B, N, 14]: 1 = the atom clashes
};

/// Returns the overlaps of atoms of residues with different numbers: the sum of their radii - tolerance - distance,
/// where that is positive. C and N of neighbours and two atoms in slot 5 (SG of a disulfide, but of any type) do not
/// clash.
///
/// Memory: slices of the distances of all atoms. The gradient is computed in forward and kept, [B, N, 14, 3].
Clashes clashes_between(const PredictedChain& chain, const ops::ResidueTables& tables,
                        const ViolationTolerance& tolerance = {});

/// Returns how far distances within residues are out of the bounds of the tables.
Clashes violations_within(const PredictedChain& chain, const ops::ResidueTables& tables);

/// The three mean errors of bonds, plus the sums of clashes and of violations within residues over the number of atoms.
at::Tensor violation_losses(const PredictedChain& chain, const ops::ResidueTables& tables,
                            const ViolationTolerance& tolerance = {});

}  // namespace colossal::run
