// Drawn proteins, for data.path = "builtin-folds": helices and strands whose letters tell how the chain turns.
//
//   const data::DrawnFold fold = data::drawn_fold(seed, {.residues = 16, .rows = 4});
//   fold.sequence                         // "AELKMQRANGDVIYFT"
//   fold.alignment.rows[2]                // a relative of it
//   fold.atoms[0][protein::kAtomCa]       // where it begins
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/protein/alignment.h"
#include "colossal/protein/geometry.h"

namespace colossal::data {

/// Sizes of a drawn chain.
struct DrawnFoldSizes {
  int64_t residues = 16;  ///< of the chain, at least 1
  int64_t rows = 1;       ///< of its alignment, the chain included
};

/// A drawn chain.
struct DrawnFold {
  static constexpr int kAtoms = 5;  ///< N, CA, C, CB and O, the first slots of atom37

  std::string sequence;
  /// Further rows have the same kinds of letters: 30 % of the letters are drawn anew in their kind, 5 % are gaps, and
  /// 2 % follow one to three residues that are left out
  protein::Alignment alignment;
  std::vector<std::array<protein::Point, kAtoms>> atoms;  ///< of each residue, in Angstrom; glycine has no CB: zeros
};

/// Draws a chain. It consists of stretches of 6 to 14 letters of one kind, helix (AELKMQR, phi -57, psi -47) or strand
/// (VIYFTWC, phi -119, psi 113), with turns N G D between them (phi, psi: 55, 40; 60, 30; -70, -10). Omega is 180.
/// Lengths are N-CA 1.458, CA-C 1.525, C-N 1.329 and C-O 1.231; angles N-CA-C 111, CA-C-N 116.2, C-N-CA 121.7 and
/// CA-C-O 120.5 degrees. CB is where the residue tables put it, so chains have the chirality of nature.
/// A pure function of its arguments. Errors ("data"): no residue or no row.
DrawnFold drawn_fold(uint64_t seed, const DrawnFoldSizes& sizes);

}  // namespace colossal::data
