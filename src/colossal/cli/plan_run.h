// The form of `colossal plan` that works on the config of a run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"
#include "colossal/models/shape.h"
#include "colossal/run/calibrate.h"
#include "colossal/run/config.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// Options of `colossal plan CONFIG`.
struct PlanWishes {
  std::string config;              ///< path of the config
  std::vector<std::string> flags;  ///< keys of the config as flags: "--training.steps=30"
  int64_t ranks = 0;               ///< ranks of the layout; 0 = those of the config
  std::string cluster;             ///< name or file of a profile; empty = `this`
  bool json = false;
  bool check = false;             ///< compare with two steps of a real run
  bool search = false;            ///< look for the fastest layout
  std::vector<std::string> keep;  ///< keys that a search keeps
  std::string report;             ///< file for a page that draws the step; empty = none
};

/// Adds the options of PlanWishes to the command, except `config`, `flags`, `cluster` and `json`, which both forms of
/// the command have.
void add_plan_options(CLI::App& app, PlanWishes& wishes);
/// The names of these options, for refuse_options().
std::vector<std::string> plan_option_names();

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
