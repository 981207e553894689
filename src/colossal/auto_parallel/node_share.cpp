#include "colossal/auto_parallel/node_share.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::automatic {
namespace {

/// Returns for each axis of the mesh the index of the operator that it divides, or -1. The name of a strategy has them.
std::vector<int> assigned_indices(const plan::IndexedOperator& op, const plan::Strategy& strategy,
                                  const plan::Mesh& mesh) {
  std::vector<int> assigned(mesh.axes.size(), -1);
  if (strategy.name == "whole") return assigned;
  for (size_t begin = 0; begin < strategy.name.size();) {
    const size_t end = std::min(strategy.name.find(',', begin), strategy.name.size());
    const std::string entry = strategy.name.substr(begin, end - begin);
    const size_t equals = entry.find('=');
    const int axis = mesh.find(entry.substr(0, equals));
    const auto index = std::find_if(op.indices.begin(), op.indices.end(),
                                    [&](const plan::Index& i) { return i.name == entry.substr(equals + 1); });
    require(equals != std::string::npos && axis >= 0 && index != op.indices.end(), "auto_parallel",
            "a strategy must assign axes to indices: got ", strategy.name);
    assigned[axis] = static_cast<int>(index - op.indices.begin());
    begin = end + 1;
  }
  return assigned;
}

bool contains(const std::vector<int>& indices, int index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

}  // namespace

NodeShare share_of(const plan::Graph& graph, int node, const plan::Strategy& strategy, const plan::Mesh& mesh) {
  const plan::IndexedOperator op = plan::index_operator(graph, node);
  NodeShare share;
  share.gradients.resize(op.operands.size());
  const std::vector<int> assigned = assigned_indices(op, strategy, mesh);
  for (int axis = 0; axis < static_cast<int>(assigned.size()); ++axis) {
    const int index = assigned[axis];
    if (index < 0) continue;
    if (op.indices[index].summed) {
      share.summed.push_back(axis);
      share.parts *= mesh.axes[axis].size;
      continue;
    }
    if (op.statistics_bytes > 0 && op.output[0] == index) share.statistics.push_back(axis);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const bool has_gradient = graph.needs_gradient[node] && graph.has_gradient(graph.operands[node][i]);
      if (has_gradient && !contains(op.operands[i], index)) share.gradients[i].push_back(axis);
    }
  }
  return share;
}

std::vector<ParameterShare> parameter_shares(const plan::Graph& graph, const plan::Plan& plan) {
  std::vector<ParameterShare> shares;
  std::vector<uint8_t> sums(graph.parameters.size(), 0);
  for (const plan::Parameter& parameter : graph.parameters)
    shares.push_back({plan::Spec(parameter.type.shape.size(), 0), {}});
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    const NodeShare share = share_of(graph, node, plan.strategies[node], plan.mesh);
    for (size_t i = 0; i < graph.operands[node].size(); ++i) {
      const plan::Source source = graph.operands[node][i];
      if (!source.is_parameter) continue;
      shares[source.index].spec = plan.strategies[node].operands[i];
      for (const int axis : share.gradients[i])
        sums[source.index] = static_cast<uint8_t>(sums[source.index] | 1u << axis);
    }
  }
  for (size_t p = 0; p < shares.size(); ++p)
    for (size_t axis = 0; axis < plan.mesh.axes.size(); ++axis)
      if (sums[p] >> axis & 1) shares[p].gradient_axes.push_back(plan.mesh.axes[axis].name);
  return shares;
}

double gradient_factor(const std::vector<int>& partial, const std::vector<std::string>& summed_over,
                       const plan::Mesh& mesh) {
  double factor = 1;
  for (const std::string& name : summed_over) {
    const int axis = mesh.find(name);
    if (axis >= 0 && !contains(partial, axis)) factor /= static_cast<double>(mesh.axes[axis].size);
  }
  return factor;
}

}  // namespace colossal::automatic
