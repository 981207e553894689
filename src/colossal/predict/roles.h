// Records the work of ranks from shapes alone: one rank of each role, or one of each pipeline stage, which is enough to
// compare layouts at a fraction of the time.
//
//   const predict::RecordedRoles roles = predict::record_roles({config, shape});   // calls and memory
//
//   const auto prediction = predict::predict_step({config, shape}, predict::record_stages({config, shape}), cluster);
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/step_memory.h"
#include "colossal/plan/cluster.h"
#include "colossal/train/record_step.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

/// Ranks of a run that do the same work, with the recorded step of the first of them.
struct RecordedRole {
  std::string name;
  std::vector<int> ranks;
  train::RecordedStep step;
  /// memory of its worst step (predict/rank_load.h): uneven experts, several documents in a row; none = as `step`
  std::optional<StepMemory> at_worst{};
};
using RecordedRoles = std::vector<RecordedRole>;

/// The most ranks of which record_roles() records every one.
inline constexpr int64_t kRecordedRanks = 64;

using RecordingProgress = std::function<void(int64_t done, int64_t all)>;

/// Records the ranks of [parallel]. With up to kRecordedRanks ranks every rank is recorded, and ranks with equal
/// steps become one role. Steps are equal if their calls, products and passes are and each kind of memory differs by at
/// most 4 KiB. Outside of passes, elementwise work may differ, because the norm of the gradients counts a tensor that
/// several ranks have on the first of them. Ranks of a role communicate with the same roles.
/// With more ranks, one rank of each pipeline stage and each place in a sequence is recorded. It stands for all ranks
/// that differ from it only in their place along the other axes.
/// No communication. Errors: those of train::record_step().
RecordedRoles record_roles(const train::ConfiguredRun& run, const RecordingProgress& progress = {});

/// Records the roles for the devices of `cluster`: with on_devices(), and with products of 8-bit values only on devices
/// that compute them faster than others (device.fp8 above device.bf16 and device.fp16). Other devices emulate them.
/// `progress` is called before each recorded rank with the number of those that are recorded, and of all.
RecordedRoles record_roles(const train::ConfiguredRun& run, const plan::Cluster& cluster,
                           const RecordingProgress& progress = {});

/// Records the first rank of each rank of the pipeline. It stands for all ranks that differ from it only along other
/// axes; their shards differ by padding, and under sequence parallelism by the pairs that a mask leaves.
/// No communication. Errors: those of train::record_step().
RecordedRoles record_stages(const train::ConfiguredRun& run);
/// Records the stages for the devices of `cluster`, as record_roles(run, cluster) records roles.
RecordedRoles record_stages(const train::ConfiguredRun& run, const plan::Cluster& cluster);

/// Returns blocks x micro-batches that record_stages() runs, with what building the ranks of `stages` stages costs.
double recording_work(int64_t stages, int64_t micro_batches, bool recomputes, int64_t blocks);
/// Returns recording_work() for the pipeline and the recomputation of a config.
double recording_work(const run::Config& config, int64_t blocks);

/// Returns `run` with the memory for activations that memory.recompute = "auto" has on the devices of `cluster`
/// (memory.activations), so that a recorded step recomputes what the run on them would. Unchanged if ranks share a
/// device, whose memory the run reads itself, or for another memory.recompute.
/// Errors: those of train::activation_budget().
train::ConfiguredRun on_devices(train::ConfiguredRun run, const plan::Cluster& cluster);

}  // namespace colossal::predict
