// Prices the calls of roles at the slowest place that a rank of the role has.
//
//   const predict::RoleCosts costs(cluster, config.parallel, roles);
//   const plan::StepTimeline step = plan::simulate_step(simulated, costs);
#pragma once
#include <vector>

#include "colossal/plan/cluster_costs.h"
#include "colossal/predict/rank_places.h"
#include "colossal/predict/step.h"

namespace colossal::predict {

/// The costs of a cluster for a step of roles. One rank of each role is recorded, so its groups and messages may be
/// inside a node where those of another rank of the role cross nodes: the first two ranks of a ring of 16, for
/// instance. A step waits for the slowest rank. place_of() therefore returns the place on the most nodes among
///
///   - the group, moved along the axes in which its members do not differ, to ranks of the same roles;
///   - for a message between ranks of one role, also the messages of the same distance in its group.
///
/// The axis `pipeline` is left out, because every stage has roles of its own.
class RoleCosts final : public plan::Costs {
 public:
  /// All must outlive this object. `parallel` is the layout of the roles.
  RoleCosts(const plan::Cluster& cluster, const distributed::ParallelConfig& parallel, const RecordedRoles& roles);

  double product_seconds(const StepEvent& product) const override { return costs_.product_seconds(product); }
  double attention_seconds(const StepEvent& attention) const override { return costs_.attention_seconds(attention); }
  double elementwise_seconds(double bytes) const override { return costs_.elementwise_seconds(bytes); }
  /// Cost: O(ranks of a stage) in all, for each group and each message.
  plan::GroupPlace place_of(const std::vector<int>& ranks) const override;
  double call_seconds(const StepEvent& call, const plan::GroupPlace& place) const override {
    return costs_.call_seconds(call, place);
  }
  double host_copy_seconds(double bytes) const override { return costs_.host_copy_seconds(bytes); }
  double disk_seconds(double bytes) const override { return costs_.disk_seconds(bytes); }

 private:
  int role_of(int64_t rank) const;
  int64_t nodes_of(const std::vector<int>& ranks, int64_t distance) const;
  bool has_same_roles(const std::vector<int>& ranks, int64_t distance) const;
  std::vector<std::vector<int>> alike_messages(int from, int to) const;
  void widen(const std::vector<int>& ranks, std::vector<int>& widest, int64_t& nodes) const;

  const plan::ClusterCosts costs_;
  const int64_t ranks_per_node_;
  const RankPlace sizes_;
  const RecordedRoles& roles_;
  std::vector<int> role_of_rank_;  // -1 = none
};

}  // namespace colossal::predict
