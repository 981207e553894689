// Measures of how near a structure is to a reference.
//
//   const protein::Comparison found = protein::compare(protein::ca_trace(predicted), protein::ca_trace(reference));
//   std::printf("RMSD %.2f A, TM %.3f\n", found.rmsd, found.tm);
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "colossal/protein/geometry.h"
#include "colossal/protein/structure.h"

namespace colossal::protein {

/// The residues of a structure, chain after chain.
struct CaTrace {
  std::string letters;                      ///< one per residue
  std::vector<std::optional<Point>> atoms;  ///< the CA of each residue; nothing = not known
};

/// Returns the trace of all chains, or of the chain at `index`.
CaTrace ca_trace(const Structure& structure);
CaTrace ca_trace(const StructureChain& chain);

/// The measures of `colossal compare`. All but `rmsd` are from 0 to 1, 1 for equal structures.
struct Comparison {
  int64_t residues = 0;  ///< pairs of aligned residues with a CA in both
  double rmsd = 0;       ///< of these pairs after superposition, in Angstrom
  double lddt_ca = 0;    ///< see lddt()
  double tm = 0;         ///< see tm_scores()
  double gdt_ts = 0;     ///< see tm_scores()
};

/// Compares `structure` with `reference` by their CA atoms; sequences are aligned globally. A residue of the reference
/// that the structure lacks counts as wrong in `lddt_ca`, `tm` and `gdt_ts`.
/// Errors ("compare"): fewer than 3 pairs with a CA in both.
Comparison compare(const CaTrace& structure, const CaTrace& reference);

struct Lddt {
  std::vector<double> residues;  ///< of each residue; 1 if it has no pair
  double all = 1;                ///< of all pairs
};

/// Returns the local distance difference test (Mariani et al. 2013): the share of pairs with a true distance below
/// `cutoff` whose distance differs by less than .5, 1, 2 and 4 Angstrom, averaged over the four. Pairs with a point
/// that is not known count as wrong. Cost: O(points^2).
/// Errors ("compare"): different numbers of points.
Lddt lddt(std::span<const std::optional<Point>> points, std::span<const Point> truth, double cutoff = 15);

/// Returns d0 of the TM-score for a reference of that many residues (Zhang and Skolnick 2004):
/// 1.24 (max(residues, 19) - 15)^(1/3) - 1.8, but at least .5, as the program TMscore has it.
double tm_d0(int64_t residues);

/// The best scores over superpositions.
struct TmScores {
  double tm = 0;  ///< largest sum of 1 / (1 + d^2 / d0^2) over pairs, divided by the residues of the reference
  double gdt_ts =
      0;  ///< mean of the largest shares of residues within 1, 2, 4 and 8 Angstrom, each by its own best one
};

/// Searches as the program TMscore does: superposes fragments of the chain, of all, a half, a quarter and so on down to
/// 4 pairs, at every place, then pairs that are near, until they stay the same. `points` and `truth` are pairs.
/// `residues` is the length of the reference. Cost: about O(points^2), milliseconds for 200 residues.
/// Errors ("compare"): different numbers of points, or none; a position that is not finite, or 1e9 or more from the
/// origin.
TmScores tm_scores(std::span<const Point> points, std::span<const Point> truth, int64_t residues);

}  // namespace colossal::protein
