// The graph that a trace builds: nodes by index, without names, until finish() removes what no result needs.
#pragma once
#include <string>
#include <vector>

#include "colossal/plan/graph.h"
#include "colossal/trace/trace.h"

namespace colossal::trace {

class GraphRecorder {
 public:
  /// Adds a parameter and returns its place.
  plan::Source add_parameter(const std::string& name, const at::Tensor& value, bool trains);
  /// Adds a node and returns its place. `node` has no inputs yet: `operands` are their places. The node has a gradient
  /// if `trains` is true. An empty name is chosen by finish().
  plan::Source add(plan::Node node, TracedOperator run, std::vector<plan::Source> operands, bool trains);

  bool trains(plan::Source source) const;
  /// Returns the module of the last parameter that a node reads, for messages, or "the inputs".
  std::string last_module() const;

  /// Returns the graph of the nodes that `results` depend on, and of all inputs, with names (name_nodes()). A node
  /// whose operands the plan's operator does not take becomes one without strategies. Adds a warning for each operator
  /// without strategies. Errors ("graph"): those of plan::Graph::settle().
  TracedModule finish(const std::vector<plan::Source>& results, std::vector<TracedModule::Statistics> statistics) const;

 private:
  std::vector<int> kept_nodes(const std::vector<plan::Source>& results) const;

  std::vector<plan::Parameter> parameters_;
  std::vector<at::Tensor> values_;
  std::vector<plan::Node> nodes_;
  std::vector<TracedOperator> operators_;
  std::vector<std::vector<plan::Source>> operands_;
  std::vector<bool> trains_;
};

/// Returns the name of a dtype in plans, or "" for a dtype that plans do not have.
std::string dtype_name(at::ScalarType type);
/// Returns shape and dtype of a tensor in the plan's terms. Errors ("trace"): a dtype that plans do not have.
plan::TensorType type_of(const at::Tensor& tensor);

/// Names the nodes of `graph` that have no name. `operands` are the places of each node's inputs.
///
/// C++ modules have no hooks, so names follow from the parameters that nodes read:
/// - The first node that reads `weight` or `bias` of the module "layers.0.fc1" has the name of the module. Later ones,
///   views of parameters, and nodes that read parameters of other names add their operator: "layers.0.fc1.add".
/// - A node without parameters has the name of its operator behind the block of its latest operand: "layers.0.gelu".
///   The block is the path up to its last number. A number at the end of the path is none, because the layers of a
///   sequence are no repeated blocks. Nodes that read constants and inputs only are in the block of the last parameter
///   read.
/// - A name that is taken gets a number: "layers.0.add_2". Numbers count within a block, so equal blocks have equal
///   names behind their number, which is what SolverOptions::share_blocks looks for.
void name_nodes(plan::Graph& graph, const std::vector<std::vector<plan::Source>>& operands);

}  // namespace colossal::trace
