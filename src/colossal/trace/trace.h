// Traces a torch::nn::Module with its loss, or a function of tensors, into a plan::Graph, and keeps for each node the
// operator that runs it.
//
//   const auto loss = [&](const std::vector<at::Tensor>& in) { return torch::mse_loss(net->forward(in[0]), in[1]); };
//   const trace::TracedModule traced = trace::trace_loss(*net, loss, {points, targets});
//   plan::write_graph(traced.graph, folder + "/graph.json");
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/plan/graph.h"

namespace torch::nn {
class Module;
}

namespace colossal::trace {

/// A function from the inputs of a module to its loss, a scalar.
using Loss = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;
/// A function of tensors without gradients, for instance the forward pass of a block.
using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
/// A tensor that a function reads beside its inputs: a weight. Names of operators follow from its name.
struct Captured {
  std::string name;
  at::Tensor value;
};

/// How one node of the graph runs. A node that has no operator of its own is an input or a constant.
struct TracedOperator {
  /// Operator of LibTorch, out of place; none: see `whole`, `constant` and `input`
  std::optional<c10::OperatorHandle> handle{};
  /// Runs an operator of this library (tensor/whole_operator.h), whose operands are `arguments`
  std::function<at::Tensor(const std::vector<at::Tensor>& operands)> whole{};
  std::string dims{};  ///< dimensions of `whole` (tensor::WholeOperator::dims)
  /// All arguments of the operator in the order of its schema. Tensors that the graph has are None here, or undefined
  /// in lists; `places` says where they go. Sizes (of reshape, expand) are those of whole tensors.
  std::vector<c10::IValue> arguments;
  struct Place {
    int argument = 0;     ///< index in `arguments`
    int element = -1;     ///< index in a list of tensors; -1 = the argument is a tensor
    int operand = 0;      ///< index of the operand in plan::Node::inputs
    plan::Source source;  ///< node or parameter of the graph
  };
  std::vector<Place> places;
  int result = 0;       ///< which tensor of the operator's results the node is; several nodes may share one call
  int call = -1;        ///< nodes with equal `call` are results of one call of the operator
  int shares = -1;      ///< operand whose memory the node has, because it is a view of it; -1 = its own memory
  int input = -1;       ///< index of the input of the loss; -1 = not an input
  at::Tensor constant;  ///< value of a constant of the graph: a buffer, or a tensor that the trace made
};

struct TracedModule {
  plan::Graph graph;                      ///< settled; its last node is the loss, or a result of the function
  std::vector<plan::Source> outputs;      ///< the loss, or the results of the function; all are nodes
  std::vector<TracedOperator> operators;  ///< one for each node
  std::vector<at::Tensor> parameters;     ///< of the module, one for each of graph.parameters
  std::vector<std::string> warnings;      ///< one for each operator without strategies: it runs whole on every rank
  /// Statistics of batch norm: which buffers of the module a node updates
  struct Statistics {
    int node = 0;
    at::Tensor mean, variance;  ///< buffers of the module
    at::Tensor batches;         ///< number of batches so far, a buffer that the node adds 1 to; undefined = none
    double momentum = 0.1;
  };
  std::vector<Statistics> statistics;
};

/// Runs `loss` once and returns what it did. The module is the same afterwards, also after an exception.
/// - Parameters and inputs are on meta meanwhile: they have shapes and no values. So `x.device()` is meta in the loss,
///   and tensors that it makes with `x.options()` are constants on the module's device.
/// - In-place operators become operators with a result; views of changed tensors are made again.
/// - Dropout becomes a node "dropout"; its mask follows from the logical index of each
///   element (ops::dropout). Attention with dropout becomes its parts.
/// - Rows: dimension 0 of the first input. An input with another size there is whole on every rank.
/// - Names follow the module: "layers.0.fc1", "layers.0.relu_3" (trace/graph_recorder.h).
/// Memory: constants that the pass makes, and a copy of the buffers. Every tensor is held until the trace is over.
/// Thread safety: no other thread may use the module meanwhile.
/// Errors ("trace"): an operator whose output shape depends on values (nonzero, item), or a random operator
///         other than dropout, by name; a change of a parameter; a torch::autograd::Function; a loss that is not a
///         scalar or does not depend on a parameter; no input.
TracedModule trace_loss(torch::nn::Module& module, const Loss& loss, const std::vector<at::Tensor>& inputs);

/// Runs `function` once on shapes and returns what it did. Gradients are disabled.
/// - Operators of this library are one node each, "colossal::linear": those that announce themselves
///   (tensor/whole_operator.h).
/// - Inputs may be on meta. `captured` are the tensors that the function reads beside them: the graph keeps them by
///   handle, so later values count. Other tensors with values are constants, which are copied.
/// - In-place operators become operators with a result, also those that change an input.
/// Errors ("trace"): as trace_loss(); a tensor on meta that is neither an input nor captured.
TracedModule trace_function(const Function& function, const std::vector<at::Tensor>& inputs,
                            const std::vector<Captured>& captured = {});

/// Runs a traced function operator by operator, and returns its results.
/// Errors ("trace"): another number of inputs than traced.
std::vector<at::Tensor> replay_function(const TracedModule& traced, const std::vector<at::Tensor>& inputs);

/// Runs a traced graph in one process, operator by operator: what the module computes.
/// Returns the loss of `inputs`, with the parameters that `traced` has. Autograd records the operators, so the result
/// has a backward pass. Dropout draws from the default generator; statistics of batch norm are not updated.
/// Errors ("trace"): another number of inputs than traced.
at::Tensor replay(const TracedModule& traced, const std::vector<at::Tensor>& inputs);

/// Runs the operator of a node on operands in the order of plan::Node::inputs, and returns all tensors that it returns.
/// TracedOperator::result says which of them the node is.
std::vector<at::Tensor> run_operator(const TracedOperator& run, const std::vector<at::Tensor>& operands);

}  // namespace colossal::trace
