// Applies a plan to a traced module: runs its operators on this rank's blocks, with the data movement in between.
//
//   ShardedGraph sharded(traced, plan, mesh, parameter_shares(traced.graph, plan));
//   const at::Tensor loss = sharded.run({rows_of_points, rows_of_labels}, blocks_of_parameters, seed);
//   loss.backward();                       // equal on all ranks; gradients of parameters are partial sums
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "colossal/auto_parallel/block_operators.h"
#include "colossal/auto_parallel/blocks.h"
#include "colossal/auto_parallel/node_share.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/traffic.h"
#include "colossal/plan/solver.h"
#include "colossal/trace/trace.h"

namespace colossal::auto_parallel {

/// The operators of a traced module under a plan. Traced module, plan and mesh must outlive it, and it must outlive the
/// backward passes of its runs.
class ShardedGraph {
 public:
  /// `parameters`: parameter_shares(), with all axes over which the caller sums gradients.
  /// Collective among all ranks of `mesh`, which has the axes of the plan.
  ShardedGraph(const trace::TracedModule& traced, const plan::Plan& plan, comm::Mesh& mesh,
               std::vector<ParameterShare> parameters);
  ShardedGraph(const ShardedGraph&) = delete;
  ShardedGraph& operator=(const ShardedGraph&) = delete;

  /// Returns the loss of one process on all rows, equal on every rank. Its backward pass leaves in each parameter a
  /// part of the gradient, to be summed over the axes of its share.
  ///
  /// `inputs`: this rank's rows of each input of the loss. `parameters`: this rank's blocks, one for each parameter of
  /// the graph. `seed`: of dropout, equal on all ranks.
  /// Communication: predicted_traffic(), the forward part here and the rest in the backward pass.
  /// Memory: an output is kept until its last reader, and longer if autograd saves it.
  /// Errors ("auto_parallel"): an input of another shape or dtype than traced, with both.
  at::Tensor run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters, uint64_t seed);

  const MeshGroups& groups() const { return groups_; }
  /// Returns the spec of the running statistics that a node changes: that of its channels.
  plan::Spec statistics_spec(const trace::TracedModule::Statistics& statistics) const {
    return {plan_.strategies[statistics.node].output[1]};
  }

 private:
  /// Results of operators that run for several nodes, by the node that runs. A node takes its result out.
  using SharedResults = std::map<int, std::vector<at::Tensor>>;

  at::Tensor input_block(int node, const std::vector<at::Tensor>& inputs) const;
  std::vector<at::Tensor> operands_of(int node, const std::vector<at::Tensor>& values,
                                      const std::vector<at::Tensor>& parameters) const;
  /// Returns the block of a node's output: runs its operator, or takes the result from `shared`.
  at::Tensor result_of(int node, const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& parameters,
                       uint64_t seed, SharedResults& shared) const;
  void release_read(int node, std::vector<at::Tensor>& values, std::vector<int>& readers) const;

  const trace::TracedModule& traced_;
  const plan::Plan& plan_;
  MeshGroups groups_;
  std::vector<ParameterShare> parameters_;
  std::vector<NodeShare> shares_;                          // of each node
  std::vector<std::vector<BlockConversion>> conversions_;  // of each operand of each node; equal specs = none
  std::vector<const trace::TracedModule::Statistics*> statistics_;
  std::vector<int> runners_;     // running_nodes()
  std::vector<bool> is_shared_;  // of each node: another node has the same runner
};

/// Returns, for each node, the node with whose operands its operator runs: the node itself, unless several nodes
/// are results of one call under one strategy. Such a call runs once, with the operands of the first that needs a
/// gradient, because only its conversions have a way back for the gradient, or else of the first.
std::vector<int> running_nodes(const trace::TracedModule& traced, const plan::Plan& plan);

/// Returns the traffic of one run of a plan and its backward pass, without the sums of the parameters' gradients. It
/// counts the strategies and conversions of running_nodes(). Keys and bytes are those of comm::Traffic; elements are
/// not set.
std::map<comm::Traffic::Key, comm::Traffic::Count> predicted_traffic(const trace::TracedModule& traced,
                                                                     const plan::Plan& plan);

}  // namespace colossal::auto_parallel
