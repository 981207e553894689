// Operations, bytes and seconds of the work of a node.
#pragma once
#include <cstdint>

#include "colossal/plan/strategies.h"

namespace colossal::plan {

/// The work of a rank for one node, forward and backward.
struct WorkCost {
  double operations = 0;  ///< floating-point operations of products
  double bytes = 0;       ///< bytes that the rank reads and writes
  double seconds = 0;
};

/// Returns the work of a rank that has the blocks of `strategy` and one of `shares` parts of the operations.
///
/// The forward pass takes the longer of operations / Links::operations and bytes / Links::memory_bandwidth, and the
/// start of one operator. The backward pass of a product does the operations once for each operand with a gradient
/// among the first two (attention: twice); it reads the output's gradient and the operands and writes the gradients.
/// Views and inputs take no time.
WorkCost cost_of_work(const Graph& graph, int node, const IndexedOperator& op, const Strategy& strategy, int64_t shares,
                      const Mesh& mesh, const Links& links);

}  // namespace colossal::plan
