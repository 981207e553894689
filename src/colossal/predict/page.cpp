#include "colossal/predict/page.h"

#include <algorithm>
#include <vector>

#include "colossal/plan/prediction_page.h"
#include "colossal/plan/timeline.h"
#include "colossal/predict/role_costs.h"

namespace colossal::predict {

plan::LostTime lost_time(const plan::Prediction& prediction, const plan::Cluster& cluster) {
  const plan::Profile& profile = cluster.profile();
  const int64_t together = profile.device.shared ? cluster.ranks_per_node() : 1;
  int64_t bytes = 0;
  for (const plan::PredictedRole& role : prediction.roles)
    bytes = std::max(bytes, role.kinds.parameters + role.kinds.states);
  const double checkpoint = profile.disk.write > 0 ? cluster.disk_write_seconds(static_cast<double>(bytes)) : 0;
  const int64_t devices = (prediction.ranks + together - 1) / together;
  return plan::lost_time(profile.failures, devices, checkpoint, prediction.step_seconds);
}

std::string prediction_page(const std::string& title, const run::Config& config, const RecordedRoles& roles,
                            const plan::Prediction& prediction, const plan::Cluster& cluster) {
  std::vector<plan::Role> simulated;
  std::vector<StepMemory> memory;
  for (const RecordedRole& role : roles) {
    simulated.push_back({.name = role.name, .ranks = role.ranks, .events = role.step});
    memory.push_back(role.step.memory);
  }
  const plan::StepTimeline step = plan::simulate_step(simulated, RoleCosts(cluster, config.parallel, roles));
  std::vector<plan::MemoryLimit> limits{{"memory of a device without its reserve", cluster.device_bytes()}};
  if (cluster.profile().device.shared) limits.front().name = "a rank's share of the machine's memory";
  if (config.memory.device > 0) limits.push_back({"memory.device", config.memory.device});
  return plan::prediction_page(prediction, {.title = title + " on " + cluster.profile().name,
                                            .roles = simulated,
                                            .step = step,
                                            .memory = memory,
                                            .limits = limits,
                                            .failures = plan::describe_failures(lost_time(prediction, cluster))});
}

}  // namespace colossal::predict
