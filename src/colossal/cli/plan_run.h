// The run that `colossal plan CONFIG` plans, before a step of it is recorded.
#pragma once
#include <cstdio>
#include <string>

#include "colossal/base/progress.h"
#include "colossal/cli/plan.h"
#include "colossal/plan/prediction.h"
#include "colossal/plan/profile.h"
#include "colossal/run/calibrate.h"
#include "colossal/run/config.h"
#include "colossal/train/run_models.h"

namespace colossal::run {
struct Program;
struct ResolvedModel;
}  // namespace colossal::run

namespace colossal::cli {

/// The config with the wished ranks and the models that it resolves to, and the hardware.
struct PlannedRun : train::ConfiguredRun {
  plan::Profile profile;
  std::string note;               ///< why its times are rough; empty = they are not
  std::string vocabulary_note{};  ///< why the vocabulary is not that of `colossal train`; empty = it is
};

/// Reads the config and sets its ranks. Notices go to standard error, once for all ranks. With `wishes.search` the
/// layout of the config may be illegal. Errors: those of run::read_given_config(), predict::set_ranks() and
/// run::Config::validate().
run::Config given_plan(const PlanWishes& wishes, const run::Program* program);

/// Returns the hardware that `wishes` name, and prints a notice on standard error if its times are rough. Without a
/// profile of this machine it measures for two seconds. Errors: those of run::choose_cluster().
run::ClusterChoice cluster_of_plan(const PlanWishes& wishes, const run::RunConfig& run);

/// Resolves the model of a given plan with the vocabulary of the tokenizer. No other data is read, unless the objective
/// of a program reads some when it is made. run.device becomes that of the profile, unless the config sets it.
/// Errors: those of run::check_training(), run::resolve_run() and run::check_text().
PlannedRun resolve_plan(run::Config config, const run::ClusterChoice& cluster, const run::Program* program);
/// Does all three. The vocabulary is that of the preset (model.name) if the config sets none and data.tokenizer is
/// `bytes`: in a plan, bytes stand for a tokenizer that is not at hand.
PlannedRun resolve_plan(const PlanWishes& wishes, const run::Program* program);

/// Returns the style of a progress display that only a terminal shows: a plan that is piped has nothing but its answer.
ProgressStyle style_on_terminals(std::FILE* stream);

/// Adds the notes of a planned run to the assumptions of a prediction.
void add_notes(const PlannedRun& run, plan::Prediction& prediction);

}  // namespace colossal::cli
