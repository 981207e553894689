// The page of `colossal plan CONFIG --report FILE`.
//
//   const predict::RecordedRoles roles = predict::record_roles({config, shape});
//   const plan::Prediction prediction = predict::predict_step({config, shape}, roles, cluster);
//   write_file(file, predict::prediction_page("gpt2.toml", config, roles, prediction, cluster));
#pragma once
#include <string>

#include "colossal/plan/cluster.h"
#include "colossal/plan/failures.h"
#include "colossal/plan/prediction.h"
#include "colossal/predict/roles.h"
#include "colossal/run/config.h"

namespace colossal::predict {

/// Returns the page of a prediction of `roles` on `cluster` (plan/prediction_page.h), with the memory that a rank's
/// tensors may take on its device, memory.device, and what failures cost. `title` names the config.
/// Errors: those of plan::Cluster and plan::simulate_step(). Cost: a second simulation of the step.
std::string prediction_page(const std::string& title, const run::Config& config, const RecordedRoles& roles,
                            const plan::Prediction& prediction, const plan::Cluster& cluster);

/// Returns what failures cost a long run of the predicted step, by the failures of the profile. A rank of an
/// accelerator is a device that fails; ranks that share a machine fail together. A checkpoint is as long as the fullest
/// rank writes all of its parameters and states to the disk of the profile; without one its time is 0. Ranks are taken
/// to be equally fast.
plan::LostTime lost_time(const plan::Prediction& prediction, const plan::Cluster& cluster);

}  // namespace colossal::predict
