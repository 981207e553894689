// Names of the nodes of a traced graph.
//
// C++ modules have no hooks, so names follow from the parameters that nodes read:
// - The first node that reads `weight` or `bias` of the module "layers.0.fc1" has the name of the module. Later ones,
//   views of parameters, and nodes that read parameters of other names add their operator: "layers.0.fc1.add".
// - A node without parameters has the name of its operator behind the block of its latest operand: "layers.0.gelu".
//   The block is the path up to its last number. A number at the end of the path is none, because the layers of a
//   sequence are no repeated blocks. Nodes that read constants and inputs only are in the block of the last parameter
//   read.
// - A name that is taken gets a number: "layers.0.add_2". Numbers count within a block, so equal blocks have equal
//   names behind their number, which is what SolverOptions::share_blocks looks for.
#pragma once
#include <vector>

#include "colossal/plan/graph.h"

namespace colossal::automatic {

/// Names the nodes of `graph` that have no name. `operands` are the places of each node's inputs.
void name_nodes(plan::Graph& graph, const std::vector<std::vector<plan::Source>>& operands);

}  // namespace colossal::automatic
