#include "colossal/plan/links.h"

#include "colossal/plan/cluster.h"

namespace colossal::plan {
namespace {

Link link_of(const Cluster& cluster, int64_t ranks, int64_t stride) {
  std::vector<int> group;
  for (int64_t r = 0; r < ranks; ++r) group.push_back(static_cast<int>(r * stride));
  const RankSpan span = cluster.span_of(group);
  constexpr double kFew = 1, kMany = 1 << 28;  // bytes
  const double few = cluster.collective_seconds(Collective::AllGather, kFew, span),
               many = cluster.collective_seconds(Collective::AllGather, kMany, span);
  return {.latency = few / static_cast<double>(ranks - 1), .bandwidth = (kMany - kFew) / (many - few)};
}

}  // namespace

Links links_of(const Cluster& cluster, const Mesh& mesh) {
  const Profile& profile = cluster.profile();
  Links links{.operations = cluster.peak(NumberType::Bf16) * profile.device.efficiency,
              .memory_bandwidth = profile.device.bandwidth,
              .start = profile.device.start,
              .axes = {}};
  int64_t stride = mesh.ranks();
  for (const Axis& axis : mesh.axes) {
    stride /= axis.size;
    links.axes.push_back(axis.size > 1 ? link_of(cluster, axis.size, stride) : Link());
  }
  if (links.axes.empty()) links.axes.emplace_back();
  return links;
}

}  // namespace colossal::plan
