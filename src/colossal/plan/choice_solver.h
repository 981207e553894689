// The cheapest choices of a problem within a memory limit.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/plan/choice_problem.h"

namespace colossal::plan {

/// Result of solve_choices().
struct ChoiceSolution {
  bool is_feasible = false;   ///< choices were found that can be combined and fit
  bool is_proven = false;     ///< no choices are cheaper; without choices: none fit
  std::vector<int> choices;   ///< one for each variable; empty if none were found
  double cost = kForbidden;   ///< cost of the choices
  int64_t peak = 0;           ///< bytes alive at the fullest moment
  double lower_bound = 0;     ///< no choices that fit cost less
  int64_t smallest_peak = 0;  ///< smallest peak of all choices that the search looked at
};

/// Returns the cheapest choices of which at no moment more than `limit` bytes are alive; 0 = no limit.
///
/// Without a limit, or if the cheapest choices fit it, elimination is exact. Otherwise memory gets a price at each of
/// the fullest moments, which is found by bisection and then by subgradient steps. The prices give lower bounds, of the
/// whole and for each choice. Branch and bound searches a window above the bound, in which few choices are left, and
/// widens it until it has choices. A node is split at the variable whose choices above and below the limit differ most
/// in memory.
/// The search stops after `max_entries` table entries that it computes or compares (about five seconds on one core),
/// and `is_proven` is then false. The result does not depend on time or threads.
ChoiceSolution solve_choices(const ChoiceProblem& problem, int64_t limit = 0, double max_entries = 6e8);

}  // namespace colossal::plan
