// Prices the events of a step on a cluster.
//
//   const plan::Cluster cluster(plan::find_profile("h100-8x"));
//   const plan::StepTimeline step = plan::simulate_step(roles, plan::ClusterCosts(cluster));
#pragma once
#include <vector>

#include "colossal/plan/cluster.h"
#include "colossal/plan/costs.h"

namespace colossal::plan {

/// Kinds of links (GroupPlace::link): a call over several nodes occupies the network.
inline constexpr int kNodeLink = 0, kNetworkLink = 1;

/// The costs of plan/cluster.h. Const members may be called from several threads.
class ClusterCosts final : public Costs {
 public:
  /// `cluster` must outlive this object.
  explicit ClusterCosts(const Cluster& cluster) : cluster_(cluster) {}

  /// Products of several matrices of one shape take that many times the seconds of one.
  double product_seconds(const StepEvent& product) const override;
  /// Cluster::attention_seconds() of its operations.
  double attention_seconds(const StepEvent& attention) const override;
  double elementwise_seconds(double bytes) const override { return cluster_.elementwise_seconds(bytes); }
  GroupPlace place_of(const std::vector<int>& ranks) const override;
  /// Errors ("cluster"): a profile without such links; a code that is no collective.
  double call_seconds(const StepEvent& call, const GroupPlace& place) const override;
  /// 0 if the profile does not have the speed of copies.
  double host_copy_seconds(double bytes) const override;
  /// All ranks of a node use its disk at once. Events do not distinguish reads from writes, so the slower of both
  /// counts. 0 if the profile does not have both.
  double disk_seconds(double bytes) const override;

 private:
  const Cluster& cluster_;
};

}  // namespace colossal::plan
