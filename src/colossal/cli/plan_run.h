// The form of `colossal plan` that works on the config of a run.
#pragma once
#include "colossal/cli/plan_wishes.h"
#include "colossal/models/shape.h"
#include "colossal/plan/profile.h"
#include "colossal/run/config.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// A run that is planned: its config with the wished ranks, the model that it resolves to, and the hardware.
struct PlannedRun {
  run::Config config;
  models::ModelShape shape;
  plan::Profile profile;
};

/// Reads the config, sets its ranks, and resolves the model with the vocabulary of the tokenizer. No other data is
/// read. Notices go to standard error. Errors: those of run::read_given_config(), predict::set_ranks(),
/// run::resolve_model(), run::Config::validate() and run::choose_cluster().
PlannedRun resolve_plan(const PlanWishes& wishes, const run::Program* program);

/// `colossal plan CONFIG`: predicts a step of the run and prints it. Returns the exit status: 0 whether the run fits or
/// not. Errors: those of resolve_plan() and predict::predict_step().
int plan_run(const PlanWishes& wishes, const run::Program* program);

}  // namespace colossal::cli
