#include "colossal/predict/record_stages.h"

#include <numeric>

#include "colossal/base/error.h"
#include "colossal/predict/devices_meant.h"
#include "colossal/predict/rank_load.h"

namespace colossal::predict {

RecordedRoles record_stages(const run::Config& config, const train::RunModels& models) {
  const int64_t stages = config.parallel.pipeline.size, ranks = config.parallel.ranks() / stages;
  RecordedRoles roles;
  for (int64_t stage = 0; stage < stages; ++stage) {  // "pipeline" is the outermost axis, so its ranks are neighbours
    RecordedRole role{.name = stages == 1 ? "all ranks" : concat("stage ", stage),
                      .ranks = std::vector<int>(static_cast<size_t>(ranks))};
    std::iota(role.ranks.begin(), role.ranks.end(), static_cast<int>(stage * ranks));
    role.step = train::record_step(config, models, role.ranks.front());
    role.at_worst = worst_memory(config, models, role.ranks.front());
    roles.push_back(std::move(role));
  }
  return roles;
}

RecordedRoles record_stages(const run::Config& config, const train::RunModels& models, const plan::Cluster& cluster) {
  const DevicesMeant devices(cluster);
  return record_stages(on_devices(config, models, cluster), models);
}

double recording_work(int64_t stages, int64_t micro_batches, bool recomputes, int64_t blocks) {
  constexpr double kBuilding = 20;  // a rank without blocks
  return kBuilding * static_cast<double>(stages) + (recomputes ? 1.3 : 1) * static_cast<double>(blocks * micro_batches);
}

double recording_work(const run::Config& config, int64_t blocks) {
  return recording_work(config.parallel.pipeline.size, config.micro_batches(), config.memory.recompute != "none",
                        blocks);
}

}  // namespace colossal::predict
