// The cheapest choices of a problem without a memory limit, by elimination of variables.
#pragma once
#include <vector>

#include "colossal/plan/choice_problem.h"

namespace colossal::plan {

/// Prices on memory: at each moment the cost of a byte. Empty = memory is free.
using Prices = std::vector<double>;

/// Result of eliminate().
struct Elimination {
  std::vector<int> choices;
  double cost = 0;       ///< cost of the choices, with the price of their memory
  bool is_exact = true;  ///< no choices cost less
  double entries = 0;    ///< entries of tables that were computed or compared, a measure of the time
};

/// Returns the choices with the least cost. `fixed` has for each variable the choice that it must have, or -1; empty =
/// all are free.
///
/// Choices that another choice of the variable beats in every combination are left out first (plan/priced_costs.h).
/// Variables are eliminated in the order of the smallest table. The result is exact if each table has at most
/// `max_entries`; otherwise variables with most neighbours are held at one choice, and improved in turn.
/// Cost: O(variables * choices^(treewidth + 1)); a chain needs O(variables * choices^2).
Elimination eliminate(const ChoiceProblem& problem, const Prices& prices = {}, const std::vector<int>& fixed = {},
                      double max_entries = 1 << 22);

}  // namespace colossal::plan
