// The choices of a plan as a ChoiceProblem.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "colossal/plan/choice_problem.h"
#include "colossal/plan/solver.h"

namespace colossal::plan {

/// A ChoiceProblem whose variables are the strategies of nodes and the specs of parameters that several nodes read.
struct PlanProblem {
  ChoiceProblem choices;
  std::vector<std::vector<Strategy>> strategies;  ///< for each node
  std::vector<int> node_variable;                 ///< for each node its variable; nodes of repeated blocks share one
};

/// Returns the problem of a settled graph. Errors: those of solve(), except that nothing fits.
PlanProblem make_problem(const Graph& graph, const Mesh& mesh, const Links& links, const SolverOptions& options);

}  // namespace colossal::plan
