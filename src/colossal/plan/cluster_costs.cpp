#include "colossal/plan/cluster_costs.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::plan {

double ClusterCosts::product_seconds(const StepEvent& product) const {
  const NumberType type = number_type_of(product.dtype);
  const double m = static_cast<double>(product.m), n = static_cast<double>(product.n),
               k = static_cast<double>(product.k);
  if (m * n * k <= 0) return cluster_.operations_seconds(product.operations, type);
  const double of_one = 2 * m * n * k;
  return cluster_.product_seconds(m, n, k, type) * std::max(1.0, product.operations / of_one);
}

double ClusterCosts::attention_seconds(const StepEvent& attention) const {
  return cluster_.attention_seconds(attention.operations, number_type_of(attention.dtype));
}

GroupPlace ClusterCosts::place_of(const std::vector<int>& ranks) const {
  const RankSpan span = cluster_.span_of(ranks);
  return {.link = span.nodes > 1 ? kNetworkLink : kNodeLink, .ranks = span.ranks, .nodes = span.nodes};
}

double ClusterCosts::call_seconds(const StepEvent& call, const GroupPlace& place) const {
  require(call.collective <= static_cast<uint8_t>(Collective::Barrier), "cluster",
          "a call must be a collective of comm::Collective: got code ", int{call.collective},
          "; record the step with this version");
  return cluster_.collective_seconds(static_cast<Collective>(call.collective), call.bytes, {place.ranks, place.nodes});
}

double ClusterCosts::host_copy_seconds(double bytes) const {
  return cluster_.profile().host.bandwidth > 0 ? cluster_.host_copy_seconds(bytes) : 0;
}

double ClusterCosts::disk_seconds(double bytes) const {
  if (cluster_.profile().disk.read <= 0 || cluster_.profile().disk.write <= 0) return 0;
  const double of_node = bytes * static_cast<double>(cluster_.ranks_per_node());
  return std::max(cluster_.disk_read_seconds(of_node), cluster_.disk_write_seconds(of_node));
}

}  // namespace colossal::plan
