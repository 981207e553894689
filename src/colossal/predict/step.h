// Predicts a training step from shapes alone: records one rank of each role, and simulates the step on a cluster.
//
//   const plan::Cluster cluster(plan::find_profile("h100-8x"));
//   const predict::RecordedRoles roles = predict::record_roles({config, shape});   // calls and memory
//   const plan::Prediction prediction = predict::predict_step({config, shape}, roles, cluster);
#pragma once
#include <cstdint>

#include "colossal/models/shape.h"
#include "colossal/plan/cluster.h"
#include "colossal/plan/prediction.h"
#include "colossal/predict/roles.h"
#include "colossal/run/config.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

/// Returns the prediction of a step of `roles` on `cluster`, without remedies. Calls cost what they cost at the slowest
/// place that a rank of the role has (predict/role_costs.h). Seconds and peaks are those of evenly loaded experts
/// and rows of one document. The prediction fits only if the worst step fits, too. Between even and worst loads its
/// memory is taken as a straight line, which is never below the true one.
/// Errors: those of plan::Cluster and plan::simulate_step().
plan::Prediction predict_step(const train::ConfiguredRun& run, const RecordedRoles& roles,
                              const plan::Cluster& cluster);
/// The same with record_roles(run, cluster).
plan::Prediction predict_step(const train::ConfiguredRun& run, const plan::Cluster& cluster);

/// Sets the sizes of the models in a prediction of that run, and of the memory in which its roles draw answers. Time
/// and errors: as train::model_sizes().
void add_models(plan::Prediction& prediction, const train::ConfiguredRun& run);

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
/// Returns the cluster on which `ranks` ranks run. On a shared device without a network, all ranks are in one node.
/// Errors: those of plan::Cluster.
plan::Cluster cluster_of(int64_t ranks, const plan::Profile& profile);

}  // namespace colossal::predict
