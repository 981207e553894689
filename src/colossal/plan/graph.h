// The operators of a module as data, without LibTorch: what a tracer writes to graph.json and the solver reads.
//
//   const plan::Graph graph = plan::read_graph("graph.json");
//   for (const plan::Node& node : graph.nodes) std::puts(node.name.c_str());
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::plan {

/// Shape and dtype of a tensor.
struct TensorType {
  std::vector<int64_t> shape;
  std::string dtype = "float32";  ///< PyTorch's name

  int64_t elements() const;
  int64_t bytes() const;
  bool is_floating() const;  ///< true if the tensor can have a gradient
  bool operator==(const TensorType&) const = default;
};

/// Returns the bytes of an element of a dtype, or 0 if the dtype is unknown.
int64_t dtype_bytes(std::string_view dtype);

/// A parameter of the module.
struct Parameter {
  std::string name;
  TensorType type;
  bool trains = true;  ///< false = the parameter is frozen: it has no gradient and no optimizer states

  void fields(Fields& f);
  bool operator==(const Parameter&) const = default;
};

/// The place of an operand in Graph: an index of `parameters` or of `nodes`.
struct Source {
  bool is_parameter = false;
  int index = 0;
  bool operator==(const Source&) const = default;
};

/// One operator of the forward pass. It has one output; an operator with several is several nodes.
struct Node {
  std::string name;                 ///< unique among nodes and parameters
  std::string op;                   ///< operator, for instance "linear" (operator_names())
  std::vector<std::string> inputs;  ///< names of earlier nodes or of parameters, in the order of the operands
  TensorType output;
  /// Dimensions that the operator names: reduced, normalized, permuted, joined, sliced; 1 for a cross_entropy whose
  /// classes must not be divided.
  std::vector<int64_t> dims;
  int64_t groups = 1;   ///< groups of a convolution or group norm
  bool causal = false;  ///< true for attention without the pairs above the diagonal
  bool whole = false;   ///< for the operator "input": true if every rank has the whole tensor, not its rows

  void fields(Fields& f);
  bool operator==(const Node&) const = default;
};

/// The forward pass of a module up to its loss, which is the last node. Inputs are nodes with the operator "input"; if
/// `whole` is false, dimension 0 of an input has the rows that the axis `data` divides.
struct Graph {
  std::vector<Parameter> parameters;
  std::vector<Node> nodes;                    ///< each node after the nodes that it reads
  std::vector<std::vector<Source>> operands;  ///< for each node the places of its inputs; settle() fills it
  std::vector<std::vector<int>> consumers;    ///< for each node the nodes that read it, ascending; settle() fills it
  /// For each node whether the backward pass of the last node computes its gradient. `detach`, and `fill` with a
  /// constant, pass none on. settle() fills it.
  std::vector<bool> needs_gradient;

  /// Checks the graph and fills the members that follow from it. Cost: O(nodes log nodes).
  /// Errors ("graph"): no node; a name that is empty or given twice; an input that is not an earlier node or a
  ///                   parameter, with the nearest name; an unknown dtype; a shape with more than 16 dimensions, a
  ///                   negative size or 2^56 elements; `dims` that the output or the first input does not have.
  void settle();

  const TensorType& type_of(Source source) const {
    return source.is_parameter ? parameters[source.index].type : nodes[source.index].output;
  }
  const std::string& name_of(Source source) const {
    return source.is_parameter ? parameters[source.index].name : nodes[source.index].name;
  }
  /// Returns true if the backward pass computes a gradient of this operand.
  bool has_gradient(Source source) const {
    return source.is_parameter ? parameters[source.index].trains : needs_gradient[source.index];
  }
  /// Returns the index of a node. Errors ("graph"): no node has the name; the message has the nearest name.
  int index_of(const std::string& name) const;
};

/// Reads a settled graph from the JSON object that write_graph() writes.
/// Errors: "graph" with the file, the node and the member; "file" if the file cannot be read.
Graph read_graph(const std::string& path);
/// Reads a settled graph from JSON text. `name` stands for its file in messages. Errors: the same as read_graph().
Graph parse_graph(std::string_view text, const std::string& name);

/// Returns the JSON text of a graph, one line for each parameter and node. Members with their default value are left
/// out.
std::string print_graph(const Graph& graph);
/// Writes print_graph() to a file. Errors ("file"): it cannot be written.
void write_graph(const Graph& graph, const std::string& path);

/// Returns "[8, 16]".
std::string print_shape(const std::vector<int64_t>& shape);

}  // namespace colossal::plan
