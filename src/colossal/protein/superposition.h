// The rigid transform that brings points nearest to others.
//
//   const protein::Superposition best = protein::superpose(predicted, reference);
//   const protein::Point moved = best.transform.apply(predicted[0]);
#pragma once
#include <span>

#include "colossal/protein/geometry.h"

namespace colossal::protein {

struct Superposition {
  Frame transform;  ///< of the first points
  double rmsd = 0;  ///< root of the mean squared distance after it, in Angstrom
};

/// Returns the rotation and translation of `moved` with the least squared distance to `fixed`, point by point, by the
/// quaternion method (Horn 1987). There is no reflection. Cost: O(points).
/// Errors ("protein"): no points, or different numbers of them.
Superposition superpose(std::span<const Point> moved, std::span<const Point> fixed);

}  // namespace colossal::protein
