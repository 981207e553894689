// Runs an operator of a traced module on this rank's blocks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/auto_parallel/blocks.h"
#include "colossal/auto_parallel/node_share.h"
#include "colossal/trace/trace.h"

namespace colossal::auto_parallel {

/// A node of a graph with all that its run on blocks depends on. The referenced objects must outlive the call.
struct BlockRun {
  const plan::Graph& graph;
  int node;
  const trace::TracedOperator& traced;
  const plan::Strategy& strategy;
  const NodeShare& share;
  const MeshGroups& groups;
  uint64_t seed = 0;                                            ///< seed of dropout masks, equal on all ranks
  const trace::TracedModule::Statistics* statistics = nullptr;  ///< buffers of batch norm; null = it has none
};

/// Returns what the operator reads of an operand whose block under the strategy's spec is given: it gathers the first
/// operand if the strategy says so. Communication: that all_gather; in the backward pass the sums of the operand's
/// gradient over the axes of `share`, in ascending order.
at::Tensor read_block(const NodeShare& share, size_t operand, at::Tensor block, const MeshGroups& groups);

/// Runs the operator on blocks that read_block() returned, and returns the complete block of the output.
///
/// Rules:  sizes among the arguments (view, expand) become those of the block. Means divide by the rows of all ranks;
///         a loss over classes by the weights of all ranks' rows. A bias is in the partial sums of one rank. Dropout
///         goes by the index in the whole tensor. Batch norm takes statistics over all rows, and changes this rank's
///         channels of the running statistics.
/// Communication: the forward calls of the strategy on the output, and in the backward pass the gather of the output's
///                gradient and the statistics of batch norm.
at::Tensor run_on_blocks(const BlockRun& run, const std::vector<at::Tensor>& operands);

}  // namespace colossal::auto_parallel
