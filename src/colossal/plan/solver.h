// The fastest plan of a graph: a strategy for each node, with the conversions between their specs.
//
//   const plan::Graph graph = plan::read_graph("graph.json");
//   const plan::Plan plan = plan::solve(graph, plan::parse_mesh("data=2,tensor=4"), plan::Links{}, {});
//   plan::write_plan(plan, graph, "plan.json");  // plan/plan_file.h
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "colossal/plan/conversions.h"
#include "colossal/plan/strategies.h"

namespace colossal::plan {

/// A tensor that a node makes under one spec and another node reads under another.
struct PlannedConversion {
  int from = 0, to = 0;  ///< nodes that make and read the tensor
  int operand = 0;       ///< which operand of `to`
  Conversion forward;
  Conversion backward;  ///< of the gradient; empty if there is none
};

/// A strategy for each node of a graph, and what they cost.
struct Plan {
  Mesh mesh;
  std::vector<Strategy> strategies;  ///< one for each node
  std::vector<PlannedConversion> conversions;
  double seconds = 0;           ///< forward and backward of a rank: strategies and conversions, one after another
  int64_t call_bytes = 0;       ///< bytes that a rank sends in a step
  int64_t parameter_bytes = 0;  ///< parameters of a rank, with gradients and optimizer states
  int64_t peak_bytes = 0;       ///< bytes of a rank at the fullest moment, with parameter_bytes
  bool is_proven = false;       ///< no plan of the same choices is faster
  double lower_bound = 0;       ///< seconds; no plan of the same choices that fits is faster. 0 = unknown
};

struct SolverOptions {
  int64_t memory = 0;  ///< bytes of a rank; 0 = no limit
  /// Specs that nodes' outputs and parameters must have: {{"fc1.weight", "[tensor, R]"}}.
  std::map<std::string, std::string> annotate;
  /// Nodes of repeated blocks ("layers.0.fc1", "layers.1.fc1") share one strategy.
  bool share_blocks = true;
};

/// Returns the fastest plan within the memory. Plan::is_proven is true if no other is faster; solve_choices() describes
/// when.
///
/// Memory is the most that is alive at a moment of forward and backward: parameters with gradients and states all the
/// time; an output until its last use, which is in the backward pass if an operator saves it; a gradient from its first
/// use to its node; a converted operand as long as its reader needs it. Views have no memory.
/// Errors ("plan"): nothing fits, with the smallest peak found; an unknown name in `annotate`, with the nearest; a spec
///                  that no strategy has, with the legal ones; those of strategies_of().
Plan solve(const Graph& graph, const Mesh& mesh, const Links& links, const SolverOptions& options);

/// Returns the plan that takes the named strategy for each node, and its price. `is_proven` is false.
/// Errors ("plan"): a strategy that the node does not have, with the legal ones; nodes that give a shared parameter
///                  different specs.
Plan price_plan(const Graph& graph, const Mesh& mesh, const Links& links, const std::vector<std::string>& strategies);

}  // namespace colossal::plan
