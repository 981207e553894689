// The cheapest choices of a problem without a memory limit, by elimination of variables.
#pragma once
#include <vector>

#include "colossal/plan/choice_problem.h"

namespace colossal::plan {

/// Prices on memory: at each moment the cost of a byte. Empty = memory is free.
using Prices = std::vector<double>;

struct EliminationOptions {
  double max_entries = 1 << 22;  ///< entries of a table
  bool with_bounds = false;      ///< fill Elimination::bounds, at about twice the time
};

/// Result of eliminate().
struct Elimination {
  std::vector<int> choices;
  double cost = 0;       ///< cost of the choices, with the price of their memory
  bool is_exact = true;  ///< no choices cost less
  double entries = 0;    ///< entries of tables that were computed or compared, a measure of the time
  /// For each choice of each variable a lower bound of the cost of all combinations with it; infinite if it is not
  /// allowed. Empty without EliminationOptions::with_bounds, or if the result is not exact.
  std::vector<std::vector<double>> bounds;
};

/// Returns the choices with the least cost. `allowed` has for each variable the choices that it may take; empty = all.
///
/// Choices that another choice of the variable beats in every combination are left out first (plan/priced_costs.h).
/// Variables are eliminated in the order of the smallest table. The result is exact if each table has at most
/// `options.max_entries`; otherwise variables with most neighbours are held at one choice, and improved in turn.
/// Cost: O(variables * choices^(treewidth + 1)); a chain needs O(variables * choices^2).
Elimination eliminate(const ChoiceProblem& problem, const Prices& prices = {}, const AllowedChoices& allowed = {},
                      const EliminationOptions& options = {});

}  // namespace colossal::plan
