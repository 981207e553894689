// Runs a traced graph in one process, operator by operator: what the module computes.
#pragma once
#include <vector>

#include "colossal/auto_parallel/trace.h"

namespace colossal::automatic {

/// Returns the loss of `inputs`, with the parameters that `traced` has. Autograd records the operators, so the result
/// has a backward pass. Dropout draws from the default generator; statistics of batch norm are not updated.
/// Errors ("auto_parallel"): another number of inputs than traced.
at::Tensor replay(const TracedModule& traced, const std::vector<at::Tensor>& inputs);

/// Runs the operator of a node on operands in the order of plan::Node::inputs, and returns all tensors that it returns.
/// TracedOperator::result says which of them the node is.
std::vector<at::Tensor> run_operator(const TracedOperator& run, const std::vector<at::Tensor>& operands);

}  // namespace colossal::automatic
