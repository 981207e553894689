#include "colossal/plan/strategies.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/plan/cost.h"

namespace colossal::plan {
namespace {

using Assignment = std::vector<int>;  // for each axis its index, or -1

Spec spec_of(const std::vector<int>& indices, const Assignment& assigned) {
  Spec spec(indices.size(), 0);
  for (size_t dim = 0; dim < indices.size(); ++dim)
    for (size_t axis = 0; axis < assigned.size(); ++axis)
      if (indices[dim] >= 0 && indices[dim] == assigned[axis])
        spec[dim] = static_cast<uint8_t>(spec[dim] | (1u << axis));
  return spec;
}

bool has_index(const std::vector<int>& indices, int index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

std::string name_of(const IndexedOperator& op, const Assignment& assigned, const Mesh& mesh) {
  std::string name;
  for (size_t axis = 0; axis < assigned.size(); ++axis)
    if (assigned[axis] >= 0)
      name += (name.empty() ? "" : ",") + mesh.axes[axis].name + "=" + op.indices[assigned[axis]].name;
  return name.empty() ? "whole" : name;
}

/// The node, the mesh and the numbers that its strategies are made from.
struct Maker {
  const Graph& graph;
  int node;
  const Mesh& mesh;
  const Links& links;
  IndexedOperator op;

  void add_call(Strategy& strategy, int axis, int64_t bytes, const std::string& tensor, bool in_backward) const {
    Call call = price(Collective::AllReduce, axis, bytes, mesh, links);
    call.tensor = tensor;
    call.in_backward = in_backward;
    strategy.call_bytes += call.bytes;
    strategy.call_seconds += call.seconds;
    strategy.calls.push_back(std::move(call));
  }

  void add_calls(Strategy& strategy, const Assignment& assigned) const {
    const Node& made = graph.nodes[node];
    for (size_t axis = 0; axis < assigned.size(); ++axis) {
      const int index = assigned[axis], at = static_cast<int>(axis);
      if (index < 0) continue;
      if (op.indices[index].summed) {
        const int64_t bytes = op.partial_bytes > 0 ? op.partial_bytes : strategy.output_bytes;
        add_call(strategy, at, bytes, made.name, false);
        continue;
      }
      if (op.statistics_bytes > 0 && op.output[0] == index) {
        const int64_t bytes = op.statistics_bytes / blocks_of(strategy.output[1], mesh);
        add_call(strategy, at, bytes, made.name + " statistics", false);
        if (graph.needs_gradient[node]) add_call(strategy, at, bytes, made.name + " statistics", true);
      }
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const Source source = graph.operands[node][i];
        if (!graph.has_gradient(source) || !graph.needs_gradient[node] || has_index(op.operands[i], index)) continue;
        const int64_t bytes = graph.type_of(source).bytes() / blocks_of(strategy.operands[i], mesh);
        add_call(strategy, at, bytes, graph.name_of(source) + " gradient", true);
      }
    }
  }

  /// Adds the strategy of an assignment if each tensor can be divided so.
  void add(std::vector<Strategy>& strategies, const Assignment& assigned) const {
    Strategy strategy{.name = name_of(op, assigned, mesh)};
    strategy.output = spec_of(op.output, assigned);
    const TensorType& type = graph.nodes[node].output;
    if (!is_legal(strategy.output, type.shape, mesh)) return;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      strategy.operands.push_back(spec_of(op.operands[i], assigned));
      const Source source = graph.operands[node][i];
      if (!is_legal(strategy.operands[i], graph.type_of(source).shape, mesh)) return;
      if (source.is_parameter)
        strategy.parameter_bytes += parameter_bytes(graph.parameters[source.index], strategy.operands[i], mesh);
    }
    strategy.output_bytes = type.bytes() / blocks_of(strategy.output, mesh);
    add_calls(strategy, assigned);
    int64_t shares = 1;
    for (size_t axis = 0; axis < assigned.size(); ++axis)
      if (assigned[axis] >= 0) shares *= mesh.axes[axis].size;
    const WorkCost cost = cost_of_work(graph, node, op, strategy, shares, mesh, links);
    strategy.operations = cost.operations;
    strategy.compute_seconds = cost.seconds;
    strategies.push_back(std::move(strategy));
  }

  void extend(std::vector<Strategy>& strategies, Assignment& assigned, size_t axis) const {
    if (axis == mesh.axes.size()) {
      add(strategies, assigned);
      return;
    }
    extend(strategies, assigned, axis + 1);
    if (mesh.axes[axis].size == 1) return;
    for (size_t index = 0; index < op.indices.size(); ++index) {
      if (!op.indices[index].splits) continue;
      assigned[axis] = static_cast<int>(index);
      extend(strategies, assigned, axis + 1);
    }
    assigned[axis] = -1;
  }
};

void check_rows(const Node& node, int64_t ranks) {
  const int64_t rows = node.output.shape[0], below = rows / ranks * ranks;
  require(rows % ranks == 0, "plan", "the rows of an input must be a multiple of the axis data: got ", rows, " in ",
          printable(node.name), " on ", ranks, " ranks; the nearest are ",
          below > 0 ? concat(below, " and ") : std::string(), below + ranks,
          "; an input that has no rows is marked \"whole\": true in the graph");
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
  Assignment assigned(mesh.axes.size(), -1);
  const int data = mesh.find("data");
  if (made.op == "input" && !made.whole && !made.output.shape.empty() && data >= 0 && mesh.axes[data].size > 1) {
    check_rows(made, mesh.axes[data].size);
    assigned[data] = 0;
    maker.add(strategies, assigned);
  } else if (maker.op.work == Work::Source) {
    maker.add(strategies, assigned);
  } else {
    maker.extend(strategies, assigned, 0);
  }
  return strategies;
}

}  // namespace colossal::plan
