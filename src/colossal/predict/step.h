// Predicts a training step from shapes alone: records one rank of each role, and simulates the step on a cluster.
//
//   const plan::Cluster cluster(plan::find_profile("h100-8x"));
//   const predict::RecordedRoles roles = predict::record_roles(config, shape);   // calls and memory
//   const plan::Prediction prediction = predict::predict_step(config, shape, roles, cluster);
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/prediction.h"
#include "colossal/plan/timeline.h"
#include "colossal/run/config.h"
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

/// Records the ranks of config.parallel. With up to kRecordedRanks ranks every rank is recorded, and ranks with equal
/// steps become one role. Steps are equal if their calls, products and passes are and each kind of memory differs by at
/// most 4 KiB. Outside of passes, elementwise work may differ, because the norm of the gradients counts a tensor that
/// several ranks have on the first of them. Ranks of a role communicate with the same roles.
/// With more ranks, one rank of each pipeline stage and each place in a sequence is recorded. It stands for all ranks
/// that differ from it only in their place along the other axes.
/// No communication. Errors: those of train::record_step().
RecordedRoles record_roles(const run::Config& config, const train::RunModels& models,
                           const RecordingProgress& progress = {});

/// Records the roles for the devices of `cluster`: with on_devices(), and with products of 8-bit values only on devices
/// that compute them faster than others (device.fp8 above device.bf16 and device.fp16). Other devices emulate them.
/// `progress` is called before each recorded rank with the number of those that are recorded, and of all.
RecordedRoles record_roles(const run::Config& config, const train::RunModels& models, const plan::Cluster& cluster,
                           const RecordingProgress& progress = {});

/// Returns the prediction of a step of `roles` on `cluster`, without remedies. Calls cost what they cost at the slowest
/// place that a rank of the role has (predict/role_costs.h). Seconds and peaks are those of evenly loaded experts
/// and rows of one document. The prediction fits only if the worst step fits, too. Between even and worst loads its
/// memory is taken as a straight line, which is never below the true one.
/// Errors: those of plan::Cluster and plan::simulate_step().
plan::Prediction predict_step(const run::Config& config, const train::RunModels& models, const RecordedRoles& roles,
                              const plan::Cluster& cluster);
/// The same with record_roles(config, model, cluster).
plan::Prediction predict_step(const run::Config& config, const train::RunModels& models, const plan::Cluster& cluster);

/// Sets the sizes of the models in a prediction of that config. Time and errors: as train::model_sizes().
void add_models(plan::Prediction& prediction, const run::Config& config, const train::RunModels& models);

/// Returns the operations a token of a model of which every layer attends to all tokens of a row: `causal`, those with
/// causal pairs alone, plus 12 * layers * heads * head_dim for each of the (tokens - 1) / 2 other pairs of a token.
double all_pairs_operations(const models::ModelShape& shape, int64_t tokens, double causal);

/// Sets parallel.data of `config` so that the layout has `ranks` ranks, and parallel.ranks to them if it is set.
/// Errors ("plan"): the product of the other axes does not divide `ranks`; the message names these axes and the nearest
///                  numbers of ranks.
void set_ranks(run::Config& config, int64_t ranks);

/// Resolves run.device = "auto" to the device of the profile: "cpu" if ranks share it, else "cuda". A recorded step
/// makes the choices of that device.
void set_device(run::Config& config, const plan::Profile& profile);
/// Returns `config` with the memory for activations that memory.recompute = "auto" has on the devices of `cluster`
/// (memory.activations), so that a recorded step recomputes what the run on them would. Unchanged if ranks share a
/// device, whose memory the run reads itself, or for another memory.recompute.
/// Errors: those of train::activation_budget().
run::Config on_devices(run::Config config, const train::RunModels& models, const plan::Cluster& cluster);
/// Returns the cluster on which the ranks of `config` run. On a shared device without a network, all ranks are in one
/// node.
/// Errors: those of plan::Cluster.
plan::Cluster cluster_of(const run::Config& config, const plan::Profile& profile);

}  // namespace colossal::predict
