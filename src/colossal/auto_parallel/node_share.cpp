#include "colossal/auto_parallel/node_share.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::auto_parallel {
namespace {

/// The use of one axis of the mesh by a strategy, in indices of the operator.
struct AxisEntry {
  int index = -1;    // divided by the axis; -1 = none
  int scatter = -1;  // of the output, over which partial sums are scattered
  int gather = -1;   // of the first operand, which is gathered
};

int index_named(const plan::IndexedOperator& op, const std::string& name) {
  const auto found =
      std::find_if(op.indices.begin(), op.indices.end(), [&](const plan::Index& i) { return i.name == name; });
  return found == op.indices.end() ? -1 : static_cast<int>(found - op.indices.begin());
}

/// Returns the entry of each axis. The name of a strategy has them: "data=dim0,tensor=in>dim1".
std::vector<AxisEntry> axis_entries(const plan::IndexedOperator& op, const plan::Strategy& strategy,
                                    const plan::Mesh& mesh) {
  std::vector<AxisEntry> entries(mesh.axes.size());
  if (strategy.name == "whole") return entries;
  const auto check = [&](bool ok) {
    require(ok, "auto_parallel", "a strategy must assign axes to indices: got ", strategy.name);
  };
  for (size_t begin = 0; begin < strategy.name.size();) {
    const size_t end = std::min(strategy.name.find(',', begin), strategy.name.size());
    const std::string text = strategy.name.substr(begin, end - begin);
    const size_t equals = text.find('='), variant = std::min(text.find_first_of("><"), text.size());
    const int axis = mesh.find(text.substr(0, equals));
    check(equals < variant && axis >= 0);
    AxisEntry& entry = entries[axis];
    entry.index = index_named(op, text.substr(equals + 1, variant - equals - 1));
    check(entry.index >= 0);
    if (variant < text.size()) {
      int& other = text[variant] == '>' ? entry.scatter : entry.gather;
      other = index_named(op, text.substr(variant + 1));
      check(other >= 0);
    }
    begin = end + 1;
  }
  return entries;
}

bool contains(const std::vector<int>& indices, int index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

int dim_of(const std::vector<int>& indices, int index) {
  return static_cast<int>(std::find(indices.begin(), indices.end(), index) - indices.begin());
}

}  // namespace

NodeShare share_of(const plan::Graph& graph, int node, const plan::Strategy& strategy, const plan::Mesh& mesh) {
  const plan::IndexedOperator op = plan::index_operator(graph, node);
  NodeShare share;
  share.gradients.resize(op.operands.size());
  const std::vector<AxisEntry> entries = axis_entries(op, strategy, mesh);
  for (int axis = 0; axis < static_cast<int>(entries.size()); ++axis) {
    const int index = entries[axis].index;
    if (index < 0) continue;
    if (index == op.classes) {
      share.classes.push_back(axis);
      continue;
    }
    if (entries[axis].scatter >= 0) share.scattered = {axis, dim_of(op.output, entries[axis].scatter)};
    if (entries[axis].gather >= 0) share.gathered = {axis, dim_of(op.operands[0], entries[axis].gather)};
    if (op.indices[index].summed) {
      share.summed.push_back(axis);
      share.parts *= mesh.axes[axis].size;
      continue;
    }
    if (op.statistics_bytes > 0 && op.output[0] == index) share.statistics.push_back(axis);
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (i == 0 && share.gathered.axis == axis) continue;
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

}  // namespace colossal::auto_parallel
