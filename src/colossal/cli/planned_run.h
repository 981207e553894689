// The run that `colossal plan CONFIG` plans, before a step of it is recorded.
#pragma once
#include <string>

#include "colossal/cli/plan_wishes.h"
#include "colossal/models/shape.h"
#include "colossal/plan/profile.h"
#include "colossal/run/config.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// The config with the wished ranks, the model that it resolves to, and the hardware.
struct PlannedRun {
  run::Config config;
  models::ModelShape shape;
  plan::Profile profile;
  std::string note;  ///< why its times are rough; empty = they are not
};

/// Reads the config, sets its ranks, and resolves the model with the vocabulary of the tokenizer. No other data is
/// read. Notices go to standard error, once for all ranks. run.device becomes that of the profile, unless the config
/// sets it. With `wishes.search` the layout of the config may be illegal.
/// Errors: those of run::read_given_config(), predict::set_ranks(), run::Config::validate(), run::choose_cluster() and
///         run::resolve_model() and run::check_text(). "plan": a config with the table of an adapter.
PlannedRun resolve_plan(const PlanWishes& wishes, const run::Program* program);

}  // namespace colossal::cli
