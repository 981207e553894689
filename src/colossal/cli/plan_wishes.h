// The options of `colossal plan CONFIG`. This header needs no LibTorch.
//
//   PlanWishes wishes;
//   add_plan_options(app, wishes);
//   parse(app, arguments);
//   return plan_run(wishes, program);                      // cli/plan_run.h
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"

namespace colossal::cli {

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

/// Adds the options of PlanWishes to the command, except those that cli/plan.cpp fills in: `arguments`, `config`,
/// `flags`, `cluster` and `json`.
void add_plan_options(CLI::App& app, PlanWishes& wishes);
/// The names of these options, for refuse_options().
std::vector<std::string> plan_option_names();

}  // namespace colossal::cli
