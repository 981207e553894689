// The run that `colossal plan CONFIG` plans, before a step of it is recorded.
#pragma once
#include <string>

#include "colossal/cli/plan_wishes.h"
#include "colossal/plan/profile.h"
#include "colossal/run/config.h"
#include "colossal/train/named_model.h"

namespace colossal::run {
struct Program;
struct ResolvedModel;
}

namespace colossal::cli {

/// The config with the wished ranks, the model that it resolves to, and the hardware.
struct PlannedRun {
  run::Config config;
  train::NamedModel model;  ///< with the objective and the adapter of the run
  plan::Profile profile;
  std::string note;  ///< why its times are rough; empty = they are not
};

/// Returns the model that a run trains, for a recorded step.
train::NamedModel named_model(const run::ResolvedModel& model);

/// Reads the config, sets its ranks, and resolves the model with the vocabulary of the tokenizer. No other data is
/// read. Notices go to standard error, once for all ranks. run.device becomes that of the profile, unless the config
/// sets it. With `wishes.search` the layout of the config may be illegal.
/// Errors: those of run::read_given_config(), predict::set_ranks(), run::Config::validate(), run::choose_cluster() and
///         run::resolve_model() and run::check_text().
PlannedRun resolve_plan(const PlanWishes& wishes, const run::Program* program);

}  // namespace colossal::cli
