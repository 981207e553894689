// The operators of a pass in the order in which they run, some of them in loops.
//
//   const ChunkGraph graph(traced, {.overwritten = {true}});
//   const Schedule schedule = schedule_of(graph, plan);
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "colossal/auto_chunk/chunk_plan.h"
#include "colossal/auto_chunk/free_dims.h"
#include "colossal/auto_chunk/operator_memory.h"
#include "colossal/trace/trace.h"

namespace colossal::auto_chunk {

/// What a caller says of a pass.
struct ChunkOptions {
  std::vector<bool> overwritten{};               ///< inputs whose memory the pass may take; empty = none
  std::vector<std::vector<std::string>> dims{};  ///< names of the inputs' dimensions, "" = none
};

/// A traced function and what follows from it. It refers to `traced`.
struct ChunkGraph {
  /// Errors ("auto_chunk"): the trace is of no function; more flags or names than inputs.
  explicit ChunkGraph(const trace::TracedModule& traced, ChunkOptions options = {});

  const trace::TracedModule& traced;
  ChunkOptions options;
  std::vector<NodeDims> dims;     ///< free dimensions of each node
  std::vector<int64_t> bytes;     ///< of each node's result
  std::vector<bool> is_output;    ///< whether a node is a result of the function
  std::vector<bool> is_fixed;     ///< memory that is not the pass's: constants, inputs that must keep their values
  std::vector<bool> writes_over;  ///< whether LibTorch has the operator in place, with the same numbers
  std::vector<std::vector<std::string>> dim_names;  ///< of each node's result, "" = unknown

  OperatorMemory memory;

  const plan::Node& node(int index) const { return traced.graph.nodes[index]; }
  /// Returns the node that an operand is, or -1 if it is a parameter.
  int operand(int index, size_t which) const {
    const plan::Source source = traced.graph.operands[index][which];
    return source.is_parameter ? -1 : source.index;
  }
  size_t operands(int index) const { return traced.graph.operands[index].size(); }
  /// Returns the bytes that an operator needs beside operands and result: OperatorMemory::beside().
  int64_t beside(int index, int cut = -1, int64_t count = 0, uint64_t dense = 0) const {
    return memory.beside(dims[index], index, cut, count, dense);
  }
  /// Returns the dimension of an operand that is cut with dimension `cut` of the output, or -1 if it is read whole.
  int cut_of_operand(int index, size_t which, int cut) const;
};

/// Nodes that run together, block after block.
struct Loop {
  std::vector<int> nodes;        ///< ascending
  std::map<int, int> cut;        ///< for each the cut dimension of its output
  std::set<int> repeated;        ///< those that also run before the loop
  int64_t extent = 1, size = 1;  ///< elements of the cut dimension, and of a block
  std::string name, dim;         ///< ChunkRegion::region and dim
};

/// A node, or a loop (index of Schedule::loops).
struct Step {
  int node = -1, loop = -1;
};

struct Schedule {
  std::vector<Step> steps;
  std::vector<Loop> loops;
};

/// Returns all nodes in their order.
Schedule plain_schedule(const ChunkGraph& graph);

/// Takes the nodes of the loop out of the list and puts the loop behind what then remains between them. That does not
/// depend on the loop, because everything that does is in it or after it.
void cut_out(Schedule& schedule, const Loop& loop);

/// Returns the order of a plan.
/// Errors ("chunks"): a node that the graph lacks, that is in two loops, or that cannot be cut along its dimension; an
///                   operator outside of a loop that needs a result of it before its end.
Schedule schedule_of(const ChunkGraph& graph, const ChunkPlan& plan);

/// Returns the loop as data.
ChunkRegion region_of(const ChunkGraph& graph, const Loop& loop);

/// Returns the nodes that a step reads from outside of itself, each once.
std::vector<int> read_by(const ChunkGraph& graph, const Schedule& schedule, const Step& step);

/// Returns the nodes of loop `loop` whose whole results others read.
std::vector<int> results_of(const ChunkGraph& graph, const Schedule& schedule, int loop);

}  // namespace colossal::auto_chunk
