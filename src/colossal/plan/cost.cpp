#include "colossal/plan/cost.h"

#include <algorithm>

namespace colossal::plan {
namespace {

double seconds_of(double operations, double bytes, const Links& links) {
  return links.start + std::max(operations / links.operations, bytes / links.memory_bandwidth);
}

}  // namespace

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
