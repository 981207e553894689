#include "colossal/plan/strategies.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::plan {
namespace {

/// What one axis of the mesh does. At most one of `scatter` and `gather` is set.
struct AxisUse {
  int index = -1;    // index of the operator that the axis divides; -1 = none
  int scatter = -1;  // dimension of the output over which partial sums are scattered
  int gather = -1;   // dimension of the first operand that is gathered before the operator runs
};
using Assignment = std::vector<AxisUse>;  // for each axis

Spec spec_of(const std::vector<int>& indices, const Assignment& assigned) {
  Spec spec(indices.size(), 0);
  for (size_t dim = 0; dim < indices.size(); ++dim)
    for (size_t axis = 0; axis < assigned.size(); ++axis)
      if (indices[dim] >= 0 && indices[dim] == assigned[axis].index)
        spec[dim] = static_cast<uint8_t>(spec[dim] | (1u << axis));
  return spec;
}

bool has_index(const std::vector<int>& indices, int index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

std::string name_of(const IndexedOperator& op, const Assignment& assigned, const Mesh& mesh) {
  std::string name;
  for (size_t axis = 0; axis < assigned.size(); ++axis) {
    const AxisUse& use = assigned[axis];
    if (use.index < 0) continue;
    name += (name.empty() ? "" : ",") + mesh.axes[axis].name + "=" + op.indices[use.index].name;
    if (use.scatter >= 0) name += ">" + op.indices[op.output[use.scatter]].name;
    if (use.gather >= 0) name += "<" + op.indices[op.operands[0][use.gather]].name;
  }
  return name.empty() ? "whole" : name;
}

/// Divides a dimension by a further axis. Returns false if a later axis divides it already: the first axis of a
/// dimension makes the largest blocks, and a collective over one axis keeps the order of the blocks.
bool divide_further(Spec& spec, int dim, size_t axis) {
  if (spec[dim] >> axis != 0) return false;
  spec[dim] = static_cast<uint8_t>(spec[dim] | (1u << axis));
  return true;
}

/// The node, the mesh and the numbers that its strategies are made from.
struct Maker {
  const Graph& graph;
  int node;
  const Mesh& mesh;
  const Links& links;
  IndexedOperator op;

  /// Adds a call of a strategy. `bytes` is what a rank has before it.
  void add_call(Strategy& strategy, Call what, int64_t bytes) const {
    Call call = price(what.movement, what.axis, bytes, mesh, links);
    call.tensor = std::move(what.tensor);
    call.in_backward = what.in_backward;
    call.dim = what.dim;
    strategy.call_bytes += call.bytes;
    strategy.call_seconds += call.seconds;
    strategy.calls.push_back(std::move(call));
  }

  /// Adds the sum of partial sums over an axis, which leaves them whole (dim < 0) or scattered over a dimension.
  /// `bytes` is what a rank has, before and after.
  void add_sum(Strategy& strategy, int axis, int dim, const std::string& tensor, bool in_backward,
               int64_t& bytes) const {
    const Movement movement = dim < 0 ? Movement::AllReduce : Movement::ReduceScatter;
    add_call(strategy, {.movement = movement, .axis = axis, .in_backward = in_backward, .dim = dim, .tensor = tensor},
             bytes);
    if (dim >= 0) bytes /= mesh.axes[axis].size;
  }

  bool has_gradient(size_t operand) const {
    return graph.needs_gradient[node] && graph.has_gradient(graph.operands[node][operand]);
  }

  int64_t statistics_bytes(const Strategy& strategy) const {
    return op.statistics_bytes / blocks_of(strategy.output[1], mesh);
  }

  /// Adds the calls that complete the first operand before the operator runs.
  void add_gathers(Strategy& strategy, const Assignment& assigned) const {
    for (size_t axis = 0; axis < assigned.size(); ++axis)
      if (assigned[axis].gather >= 0)
        add_call(strategy,
                 {.movement = Movement::AllGather,
                  .axis = static_cast<int>(axis),
                  .dim = assigned[axis].gather,
                  .tensor = graph.name_of(graph.operands[node][0])},
                 strategy.gathered_bytes / mesh.axes[axis].size);
  }

  /// Adds the calls between ranks that have blocks of the classes: all maxima come before the sums, which need them.
  void add_calls_of_classes(Strategy& strategy, const Assignment& assigned) const {
    if (op.classes < 0) return;
    const int64_t rows = graph.type_of(graph.operands[node][1]).elements() / blocks_of(strategy.operands[1], mesh);
    const int64_t number = std::max<int64_t>(4, dtype_bytes(graph.type_of(graph.operands[node][0]).dtype));
    for (const auto& [what, numbers] : {std::pair(" row maxima", 1), std::pair(" row sums", 2)})
      for (size_t axis = 0; axis < assigned.size(); ++axis)
        if (assigned[axis].index == op.classes)
          add_call(strategy,
                   {.movement = Movement::AllReduce,
                    .axis = static_cast<int>(axis),
                    .tensor = graph.nodes[node].name + what},
                   rows * numbers * number);
  }

  void add_forward_calls(Strategy& strategy, const Assignment& assigned) const {
    const std::string& name = graph.nodes[node].name;
    int64_t output = op.partial_bytes > 0 ? op.partial_bytes : strategy.output_bytes;
    add_gathers(strategy, assigned);
    add_calls_of_classes(strategy, assigned);
    for (size_t axis = 0; axis < assigned.size(); ++axis) {
      const AxisUse& use = assigned[axis];
      const int at = static_cast<int>(axis);
      if (use.index < 0 || use.index == op.classes) continue;
      if (op.indices[use.index].summed) {
        add_sum(strategy, at, use.scatter, name, false, output);
      } else if (op.statistics_bytes > 0 && op.output[0] == use.index) {
        add_call(strategy, {.movement = Movement::AllReduce, .axis = at, .tensor = name + " statistics"},
                 statistics_bytes(strategy));
      }
    }
  }

  void add_backward_calls(Strategy& strategy, const Assignment& assigned) const {
    if (!graph.needs_gradient[node]) return;
    const std::string& name = graph.nodes[node].name;
    std::vector<int64_t> gradients;
    for (size_t i = 0; i < op.operands.size(); ++i)
      gradients.push_back(graph.type_of(graph.operands[node][i]).bytes() / blocks_of(strategy.operands[i], mesh));
    for (size_t axis = 0; axis < assigned.size(); ++axis)
      if (assigned[axis].scatter >= 0)
        add_call(strategy,
                 {.movement = Movement::AllGather,
                  .axis = static_cast<int>(axis),
                  .in_backward = true,
                  .dim = assigned[axis].scatter,
                  .tensor = name + " gradient"},
                 strategy.output_bytes / mesh.axes[axis].size);
    for (size_t axis = 0; axis < assigned.size(); ++axis) {
      const AxisUse& use = assigned[axis];
      const int at = static_cast<int>(axis);
      if (use.index < 0 || op.indices[use.index].summed) continue;
      if (op.statistics_bytes > 0 && op.output[0] == use.index)
        add_call(strategy,
                 {.movement = Movement::AllReduce, .axis = at, .in_backward = true, .tensor = name + " statistics"},
                 statistics_bytes(strategy));
      for (size_t i = 0; i < op.operands.size(); ++i)
        if (has_gradient(i) && !has_index(op.operands[i], use.index))
          add_sum(strategy, at, i == 0 ? use.gather : -1, graph.name_of(graph.operands[node][i]) + " gradient", true,
                  gradients[i]);
    }
  }

  /// Returns false if a tensor cannot be divided as the strategy says.
  bool all_divide(const Strategy& strategy) const {
    if (!is_legal(strategy.output, graph.nodes[node].output.shape, mesh)) return false;
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (!is_legal(strategy.operands[i], graph.type_of(graph.operands[node][i]).shape, mesh)) return false;
    return true;
  }

  /// Changes the specs from those that the operator runs under to those that other nodes see. Returns false if a
  /// variant has no legal specs.
  bool apply_variants(Strategy& strategy, const Assignment& assigned) const {
    for (size_t axis = 0; axis < assigned.size(); ++axis) {
      const AxisUse& use = assigned[axis];
      if (use.scatter >= 0 && !divide_further(strategy.output, use.scatter, axis)) return false;
      if (use.gather >= 0 && !divide_further(strategy.operands[0], use.gather, axis)) return false;
    }
    strategy.output_bytes = graph.nodes[node].output.bytes() / blocks_of(strategy.output, mesh);
    return all_divide(strategy);
  }

  /// Adds the strategy of an assignment if each tensor can be divided so.
  void add(std::vector<Strategy>& strategies, const Assignment& assigned) const {
    Strategy strategy{.output = spec_of(op.output, assigned)};
    for (size_t i = 0; i < op.operands.size(); ++i) strategy.operands.push_back(spec_of(op.operands[i], assigned));
    if (!all_divide(strategy)) return;
    strategy.output_bytes = graph.nodes[node].output.bytes() / blocks_of(strategy.output, mesh);
    int64_t shares = 1;
    for (size_t axis = 0; axis < assigned.size(); ++axis) {
      if (assigned[axis].index >= 0) shares *= mesh.axes[axis].size;
      if (assigned[axis].gather >= 0)
        strategy.gathered_bytes =
            graph.type_of(graph.operands[node][0]).bytes() / blocks_of(strategy.operands[0], mesh);
    }
    add_forward_calls(strategy, assigned);
    add_backward_calls(strategy, assigned);
    const WorkCost cost = cost_of_work(graph, node, op, strategy, shares, mesh, links);
    strategy.operations = cost.operations;
    strategy.compute_seconds = cost.seconds;
    if (!apply_variants(strategy, assigned)) return;
    strategy.name = name_of(op, assigned, mesh);
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (const Source source = graph.operands[node][i]; source.is_parameter)
        strategy.parameter_bytes += parameter_bytes(graph.parameters[source.index], strategy.operands[i], mesh);
    strategies.push_back(std::move(strategy));
  }

  /// Returns the ways in which an axis can use an index: plainly, and with each tensor that it may leave divided.
  std::vector<AxisUse> uses_of(int index, bool with_variants) const {
    std::vector<AxisUse> uses{{.index = index}};
    if (!with_variants) return uses;
    if (op.scatters && op.indices[index].summed)
      for (size_t dim = 0; dim < op.output.size(); ++dim)
        if (op.output[dim] >= 0 && op.indices[op.output[dim]].splits)
          uses.push_back({.index = index, .scatter = static_cast<int>(dim)});
    if (!op.gathers || op.indices[index].summed || has_index(op.operands[0], index) || !has_gradient(0)) return uses;
    for (size_t dim = 0; dim < op.operands[0].size(); ++dim)
      if (const int other = op.operands[0][dim]; other >= 0 && op.indices[other].splits && !op.indices[other].summed)
        uses.push_back({.index = index, .gather = static_cast<int>(dim)});
    return uses;
  }

  void extend(std::vector<Strategy>& strategies, Assignment& assigned, size_t axis) const {
    if (axis == mesh.axes.size()) {
      add(strategies, assigned);
      return;
    }
    extend(strategies, assigned, axis + 1);
    if (mesh.axes[axis].size == 1) return;
    const bool has_variant = std::any_of(assigned.begin(), assigned.end(),
                                         [](const AxisUse& use) { return use.scatter >= 0 || use.gather >= 0; });
    for (size_t index = 0; index < op.indices.size(); ++index) {
      if (!op.indices[index].splits) continue;
      for (const AxisUse& use : uses_of(static_cast<int>(index), !has_variant)) {
        assigned[axis] = use;
        extend(strategies, assigned, axis + 1);
      }
    }
    assigned[axis] = {};
  }
};

void check_rows(const Node& node, int64_t ranks) {
  const int64_t rows = node.output.shape[0], below = rows / ranks * ranks;
  require(rows % ranks == 0, "plan", "the rows of an input must be a multiple of the axis data: got ", rows, " in ",
          printable(node.name), " on ", ranks, " ranks; the nearest ",
          below > 0 ? concat("are ", below, " and ") : std::string("is "), below + ranks,
          "; an input that has no rows is marked \"whole\": true in the graph");
}

double seconds_of(double operations, double bytes, const Links& links) {
  return links.start + std::max(operations / links.operations, bytes / links.memory_bandwidth);
}

}  // namespace

int64_t parameter_bytes(const Parameter& parameter, const Spec& spec, const Mesh& mesh, int64_t state_bytes) {
  const int64_t elements = parameter.type.elements() / blocks_of(spec, mesh);
  const int64_t size = dtype_bytes(parameter.type.dtype);
  return elements * (parameter.trains ? 2 * size + state_bytes : size);
}

std::vector<bool> side_nodes(const Graph& graph) {
  std::vector<bool> side(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& sources = graph.operands[i];
    side[i] = sources.empty() ? graph.nodes[i].op != "input" || graph.nodes[i].whole
                              : std::all_of(sources.begin(), sources.end(),
                                            [&](Source source) { return !source.is_parameter && side[source.index]; });
  }
  return side;
}

std::vector<Strategy> strategies_of(const Graph& graph, int node, const Mesh& mesh, const Links& links) {
  const Node& made = graph.nodes[node];
  const Maker maker{graph, node, mesh, links, index_operator(graph, node)};
  std::vector<Strategy> strategies;
  Assignment assigned(mesh.axes.size());
  const int data = mesh.find("data");
  if (made.op == "input" && !made.whole && !made.output.shape.empty() && data >= 0 && mesh.axes[data].size > 1) {
    check_rows(made, mesh.axes[data].size);
    assigned[data].index = 0;
    maker.add(strategies, assigned);
  } else if (maker.op.work == Work::Source) {
    maker.add(strategies, assigned);
  } else {
    maker.extend(strategies, assigned, 0);
  }
  return strategies;
}

WorkCost cost_of_work(const Graph& graph, int node, const IndexedOperator& op, const Strategy& strategy, int64_t shares,
                      const Mesh& mesh, const Links& links) {
  WorkCost cost;
  if (op.work == Work::View || op.work == Work::Source) return cost;
  double read = 0, gradients = 0;
  int products = 0;
  const auto& sources = graph.operands[node];
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto bytes = static_cast<double>(graph.type_of(sources[i]).bytes() / blocks_of(strategy.operands[i], mesh));
    read += bytes;
    if (!graph.has_gradient(sources[i])) continue;
    gradients += bytes;
    if (i < 2) ++products;
  }
  const auto written = static_cast<double>(strategy.output_bytes);
  const double operations = op.operations / static_cast<double>(shares);
  cost.operations = operations;
  cost.bytes = read + written;
  cost.seconds = seconds_of(operations, cost.bytes, links);
  if (!graph.needs_gradient[node]) return cost;
  const double backward = products * operations, moved = read + written + gradients;
  cost.operations += backward;
  cost.bytes += moved;
  cost.seconds += seconds_of(backward, moved, links);
  return cost;
}

}  // namespace colossal::plan
