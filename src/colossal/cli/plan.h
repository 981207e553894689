// The forms of `colossal plan`, to which plan.cpp passes the options. This header needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// Options of `colossal plan --graph`. An empty text means that the option was not given.
struct GraphWishes {
  std::string graph, node, mesh, plan, to;
  std::string cluster = "h100-8x";  ///< name or file of a profile, or `this`: the stored one
  int64_t memory = 0;               ///< bytes of a rank; 0 = no limit
  bool json = false;
};

/// Prints what the options ask for. Returns the exit status. Errors: those of plan::read_graph(), plan::solve(),
/// plan::read_plan() and plan::find_profile(); a mesh that is not the plan's; no stored profile.
int plan_graph(const GraphWishes& wishes);

/// Options of `colossal plan CONFIG`.
struct PlanWishes {
  Arguments arguments;             ///< the whole command line after `plan`
  std::string config;              ///< path of the config
  std::vector<std::string> flags;  ///< keys of the config as flags: "--training.steps=30"
  int64_t ranks = 0;               ///< ranks of the layout; 0 = those of the config
  std::string cluster;             ///< name or file of a profile; empty = `this`
  bool json = false;
  bool check = false;             ///< compare with two steps of a real run
  bool search = false;            ///< look for the fastest layout
  std::vector<std::string> keep;  ///< keys that a search keeps
  std::string report;             ///< file for a page that draws the step; empty = none
  std::string found_cluster;      ///< file with the hardware that the process found which started this rank
};

/// Option that names PlanWishes::found_cluster. Only plan_check() gives it.
inline constexpr char kFoundClusterFlag[] = "--found-cluster";

/// `colossal plan CONFIG`: predicts a step of the run and prints it. Returns the exit status: 0 whether the run fits or
/// not. Errors: those of resolve_plan() (cli/plan_run.h) and predict::predict_step().
int plan_run(const PlanWishes& wishes, const run::Program* program);

/// `colossal plan CONFIG --search`, and `colossal plan CONFIG` of a file with [parallel] auto: prints the layouts that
/// fit, the fastest first. With --json one object: the prediction of the fastest with the member `best`.
/// Returns the exit status. Errors: those of resolve_plan() (cli/plan_run.h) and predict::search().
int plan_search(const PlanWishes& wishes, const run::Program* program);

/// Returns true if the command line or parallel.auto of the config asks for a search. Errors: those of
/// run::read_given_config().
bool wants_search(const PlanWishes& wishes);

/// `colossal plan CONFIG --check`: compares the prediction with two steps of a real run.
/// Trains two steps on the configured data, on local ranks or those of a launcher, and prints the prediction of the
/// second beside what its ranks counted. Makes no run folder; tiers make their scratch file, which ends with the ranks.
/// Returns the exit status: 1 if a number of calls or of bytes sent differs, else 0. If a rank ends early, all end, and
/// the status is that rank's.
/// Errors: those of resolve_plan(). "plan": more than 64 ranks. The same on all ranks: errors of the data,
///         of the model and of predict::record_roles().
int plan_check(const PlanWishes& wishes, const run::Program* program);

/// `colossal plan --calibrate [--to FILE]`: measures this machine and stores the profile, by default at
/// plan::stored_profile_path(). The command `plan` calls it if --calibrate is among the arguments.
///
/// Without a launcher it starts local ranks itself. On the CPU it starts one run for each of calibrated_ranks(), and
/// joins their profiles; with GPUs it starts one rank for each GPU. Under a launcher it measures with the ranks that it
/// has, which includes links between hosts; rank 0 writes the file. Cost: at most two minutes.
int plan_calibrate(const Arguments& arguments);

/// Returns the numbers of ranks to measure with on `cores` cores: divisors of it, each at least twice the one before,
/// from 1 to `cores` or at most 128.
std::vector<int64_t> calibrated_ranks(int64_t cores);

}  // namespace colossal::cli
