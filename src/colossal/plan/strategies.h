// The ways in which the ranks of a mesh can share the work of one operator.
//
// A strategy assigns each axis of the mesh to one index of the operator (plan/operators.h) or to none. The specs of
// operands and output, the share of the work and the collectives follow from that:
// - an axis on a summed index leaves partial sums of the output, which an all_reduce adds in the forward pass;
// - an axis on an index that an operand does not have leaves partial sums of that operand's gradient, which an
//   all_reduce adds in the backward pass, unless the index is summed: then every rank has the whole gradient already.
// Two variants leave a tensor divided instead of having it whole on every rank, at most one in a strategy:
// - `tensor=in>dim1` scatters the partial sums of the output over dimension 1 (reduce_scatter in forward). The gradient
//   of the output is gathered along that dimension in backward before the operator's own backward pass;
// - `tensor=out<dim1` reads blocks of dimension 1 of the first operand, which it gathers in forward before the operator
//   runs, and scatters the partial sums of that operand's gradient in backward (reduce_scatter).
// With both, a transformer layer has Megatron's sequence parallelism.
//
//   plan::Graph graph = plan::read_graph("graph.json");
//   const int fc1 = graph.index_of("fc1");
//   for (const plan::Strategy& s : plan::strategies_of(graph, fc1, mesh, {})) std::puts(s.name.c_str());
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/plan/conversions.h"
#include "colossal/plan/graph.h"
#include "colossal/plan/links.h"
#include "colossal/plan/operators.h"
#include "colossal/plan/specs.h"

namespace colossal::plan {

/// One way to share the work of a node. Every tensor that a strategy names is complete: the calls have been made.
///
/// Calls are listed in the order of their execution, those of forward first. A call is made on this tensor:
/// - forward all_gather of an operand (its name), along Call::dim: before the operator runs;
/// - forward all_reduce or reduce_scatter of the output (the name of the node): after the operator has run on blocks.
///   A bias is added once, not by each rank of the axis. A mean is that of all rows, so each rank adds its share of it;
/// - forward all_reduce of "<node> row maxima", by maximum, then of "<node> row sums": at least in fp32, one element
///   for each row of the targets, then two, the sum of exp(logit - maximum) and the logit of the target, 0 outside the
///   rank's classes. The losses of the rows and their gradients follow without a further call over that axis. They are
///   summed over the axes of the rows afterwards;
/// - "<node> statistics": sums of batch norm, 2 x channels fp32, in forward, and again in backward;
/// - backward all_gather of "<node> gradient", along Call::dim: before the operator's backward pass;
/// - backward all_reduce or reduce_scatter of "<operand> gradient": after it.
/// All reductions add, except row maxima.
struct Strategy {
  std::string name;            ///< "data=dim0,tensor=out": axes and their indices; "whole" = every rank does all work
  std::vector<Spec> operands;  ///< for each operand the spec that the strategy reads; a gathered one is divided in it
  Spec output;
  std::vector<Call> calls;     ///< collectives of forward and backward
  double operations = 0;       ///< floating-point operations of a rank, forward and backward
  double compute_seconds = 0;  ///< forward and backward, without the calls
  double call_seconds = 0;
  int64_t call_bytes = 0;       ///< bytes that a rank sends
  int64_t output_bytes = 0;     ///< bytes of the rank's block of the output
  int64_t gathered_bytes = 0;   ///< bytes of the operand that the strategy gathers, as long as the node needs operands
  int64_t parameter_bytes = 0;  ///< the rank's blocks of the operator's parameters, with gradients and states

  double seconds() const { return compute_seconds + call_seconds; }
};

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

/// What a parameter that trains needs in addition to itself and its gradient.
inline constexpr int64_t kAdamStateBytes = 8;

/// Returns the bytes that a rank needs for a parameter under a spec: the parameter, and if it trains a gradient of the
/// same dtype and `state_bytes` of optimizer states for each element.
int64_t parameter_bytes(const Parameter& parameter, const Spec& spec, const Mesh& mesh,
                        int64_t state_bytes = kAdamStateBytes);

/// Returns the strategies of a node of a settled graph, "whole" first if it is legal. An input whose rows are divided
/// has one strategy, which divides dimension 0 by the axis `data`.
/// Errors ("graph"): operands that the operator does not take. ("plan"): the rows of an input are no multiple of the
///                   axis `data`; the message has the nearest numbers.
std::vector<Strategy> strategies_of(const Graph& graph, int node, const Mesh& mesh, const Links& links);

/// Returns for each node whether it depends on constants and whole inputs only. Every rank computes such nodes whole.
std::vector<bool> side_nodes(const Graph& graph);

}  // namespace colossal::plan
