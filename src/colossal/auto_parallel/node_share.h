// The share of a node's work that a strategy gives to each rank: which axes leave partial sums, and where.
//
//   const NodeShare share = share_of(graph, node, plan.strategies[node], plan.mesh);
//   for (const int axis : share.summed) ...                // partial sums of the output over this axis
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/plan/operators.h"
#include "colossal/plan/solver.h"

namespace colossal::auto_parallel {

/// The axes of a strategy by what they leave to sum. Axes are indices of Mesh::axes, ascending.
struct NodeShare {
  /// An axis that divides a dimension of a tensor before the operator reads it, or after the operator has made it.
  struct Variant {
    int axis = -1;  ///< -1 = none
    int dim = -1;
  };
  std::vector<int> summed;                  ///< partial sums of the output
  std::vector<int> statistics;              ///< partial sums of the statistics of batch norm
  std::vector<int> classes;                 ///< blocks of the classes of a loss
  std::vector<std::vector<int>> gradients;  ///< for each operand: partial sums of its gradient
  Variant scattered;                        ///< one of `summed`: the sums of the output are scattered
  Variant gathered;                         ///< the first operand is gathered, the sums of its gradient are scattered
  int64_t parts = 1;                        ///< ranks that have partial sums of the output
};
/// Returns the share that a strategy of the node gives. The collectives in Strategy::calls are those of these axes.
NodeShare share_of(const plan::Graph& graph, int node, const plan::Strategy& strategy, const plan::Mesh& mesh);

/// How a plan divides a parameter.
struct ParameterShare {
  plan::Spec spec;
  /// Axes over which the gradients of some use are partial sums. A use whose gradient is whole along such an axis
  /// counts its gradient as a part of it (gradient_factor()).
  std::vector<std::string> gradient_axes;
};
/// Returns the share of each parameter of the graph. A parameter that no node reads is whole.
std::vector<ParameterShare> parameter_shares(const plan::Graph& graph, const plan::Plan& plan);

/// Returns the factor of the gradient of one use of a parameter, so that the sum over `summed_over` counts it once.
/// `partial` are the axes over which that use leaves partial sums.
double gradient_factor(const std::vector<int>& partial, const std::vector<std::string>& summed_over,
                       const plan::Mesh& mesh);

}  // namespace colossal::auto_parallel
