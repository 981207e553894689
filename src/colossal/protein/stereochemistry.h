// Lengths, angles and radii of literature, by which models judge predicted atoms (violations).
//
//   const auto bounds = protein::atom14_bounds({.tolerance = 12, .overlap = 1.5});
//   const double shortest = bounds.lower[protein::type_of_letter('A')][0][1];  // between N and CA
//
// Bond lengths and angles within residues: Engh and Huber, International Tables for Crystallography F (2001), 18.3.
#pragma once
#include "colossal/protein/residues.h"

namespace colossal::protein {

/// A mean with its standard deviation.
struct Literature {
  double mean, deviation;
};

/// Bonds between a residue and the next one. Lengths in Angstrom.
inline constexpr Literature kBondCN{1.329, 0.014};         ///< C to N of the next residue
inline constexpr Literature kBondCNProline{1.341, 0.016};  ///< the same before a proline
inline constexpr Literature kCosineCaCN{-0.4473, 0.0311};  ///< cosine of the angle CA, C, next N (116.568 degrees)
inline constexpr Literature kCosineCNCa{-0.5203, 0.0353};  ///< cosine of the angle C, next N, next CA (121.352 degrees)
inline constexpr double kCaCa = 3.80209737096;             ///< CA to the next CA with omega = 180 degrees

/// Returns the van der Waals radius of an element, in Angstrom: C 1.7, N 1.55, O 1.52, S 1.8.
/// Errors ("protein"): another element.
double van_der_waals_radius(char element);

/// How far atoms of a residue may differ from literature.
struct BoundsOptions {
  double tolerance = 12;  ///< standard deviations of bonds, and of distances across an angle
  double overlap = 1.5;   ///< Angstrom by which the spheres of other pairs of atoms may overlap
};

/// Distances of two atoms of one residue, [type][atom14][atom14], in Angstrom. Pairs of an empty slot have zeros.
struct Atom14Bounds {
  Table<double, kTableTypes, kAtom14, kAtom14> lower{}, upper{};  ///< upper is 1e10 if there is no bond or angle
  Table<double, kTableTypes, kAtom14, kAtom14> deviation{};       ///< standard deviation; 0 = no bond or angle
};

/// Returns the bounds of all pairs: of bonded atoms and of atoms across an angle mean -+ tolerance x deviation, of
/// others the sum of radii - overlap. A distance across an angle follows from the two bonds (law of cosines), its
/// deviation from theirs and the angle's, taken as independent. Cost: microseconds.
Atom14Bounds atom14_bounds(const BoundsOptions& options = {});

/// Returns the radius of each atom14 slot; 0 for empty slots.
Table<double, kTableTypes, kAtom14> atom14_radii();

}  // namespace colossal::protein
