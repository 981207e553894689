#include "colossal/cli/plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/cli/commands.h"

namespace colossal::cli {
namespace {

/// Options of both forms of the command, as they are parsed.
struct PlanOptions {
  GraphWishes graph;
  PlanWishes run;
  std::string memory;
  std::string cluster;
  bool json = false;
  bool calibrates = false;  // never set: plan() handles it; listed for the help
};

/// Adds the options of PlanWishes, except those that plan() fills in.
void add_plan_options(CLI::App& app, PlanWishes& wishes) {
  app.add_option("--ranks", wishes.ranks, "ranks of the run: parallel.data becomes this number divided by other axes")
      ->check(CLI::Range(1, 1 << 24));
  app.add_flag("--check", wishes.check, "also train two steps on local ranks, and compare the second one");
  app.add_option(kFoundClusterFlag, wishes.found_cluster, "")->group("");
  app.add_flag("--search", wishes.search, "find the fastest layouts that fit, instead of that of CONFIG");
  app.add_option("--keep", wishes.keep, "keys that --search keeps as CONFIG has them, such as parallel.tensor")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--report", wishes.report, "file for a page that draws the step and its memory");
}

std::vector<std::string> plan_option_names() { return {"--ranks", "--check", "--search", "--keep", "--report"}; }

void add_graph_options(CLI::App& app, PlanOptions& options) {
  GraphWishes& wishes = options.graph;
  app.add_option("--graph", wishes.graph, "graph.json of a traced module, instead of CONFIG");
  app.add_option("--node", wishes.node, "with --graph: list every strategy of this node with its cost");
  app.add_option("--mesh", wishes.mesh,
                 "with --graph: axes of the ranks, such as data=2,tensor=4; without --node: find a plan");
  app.add_option("--memory", options.memory,
                 "with --graph: memory of a rank for the plan, such as 40GiB; default: no limit");
  app.add_option("--plan", wishes.plan, "with --graph: price the plan in this file, which may be edited");
  app.add_option("--to", wishes.to, "with --graph: file for the plan, as JSON");
}

int plan_of_graph(const CLI::App& app, PlanOptions& options) {
  GraphWishes& wishes = options.graph;
  refuse_options(app, plan_option_names(), "with --graph, which has no config");
  if (!app.remaining().empty())
    throw UsageError("colossal plan: keys of a config have no effect with --graph: got `" + app.remaining().front() +
                     "`; see `colossal plan --help`");
  if (!wishes.node.empty()) refuse_options(app, {"--memory", "--plan", "--to"}, "with --node");
  if (wishes.mesh.empty() && wishes.plan.empty()) refuse_options(app, {"--memory", "--to"}, "without --mesh or --plan");
  if (!options.memory.empty()) {
    const auto bytes = parse_bytes(options.memory);
    if (!bytes || *bytes == 0)
      throw UsageError("colossal plan: --memory must be " + std::string(kSizeRule) + ": got `" + options.memory + "`");
    wishes.memory = *bytes;
  }
  if (!options.cluster.empty()) wishes.cluster = options.cluster;
  wishes.json = options.json;
  return plan_graph(wishes);
}

int plan_of_run(const CLI::App& app, PlanOptions& options, const run::Program* program) {
  refuse_options(app, {"--node", "--mesh", "--memory", "--plan", "--to"}, "without --graph");
  if (!options.run.search) refuse_options(app, {"--keep"}, "without --search");
  if (options.run.check) refuse_options(app, {"--report"}, "with --check");
  options.run.flags = config_flags(app);
  options.run.cluster = options.cluster;
  options.run.json = options.json;
  return plan_run(options.run, program);
}

}  // namespace

int plan(const Arguments& arguments, const run::Program* program) {
  if (std::find(arguments.begin(), arguments.end(), "--calibrate") != arguments.end()) return plan_calibrate(arguments);
  CLI::App app(
      "Predicts a training step of CONFIG without training: memory, traffic, time, and whether it fits. Any key of the "
      "file is also a flag: --parallel.tensor=2. With --graph, lists the operators of a traced graph with their costs, "
      "the strategies of one of them, or the fastest plan on a mesh.",
      "colossal plan");
  PlanOptions options;
  options.run.arguments = arguments;
  app.add_option("config", options.run.config, "TOML file of a run; `colossal help config` lists every key");
  add_plan_options(app, options.run);
  add_graph_options(app, options);
  app.add_option("--cluster", options.cluster,
                 "hardware: a100-8x, h100-8x, h200-8x, rtx-3060, rtx-4090, a profile's file, or `this` machine (`plan "
                 "--calibrate`); "
                 "default: this, with --graph h100-8x");
  app.add_flag("--json", options.json, "print one JSON object");
  app.add_flag("--calibrate", options.calibrates,
               "measure this machine instead; `colossal plan --calibrate --help` lists the options");
  app.allow_extras();
  parse(app, arguments);
  if (options.run.config.empty() == options.graph.graph.empty())
    throw UsageError("colossal plan: either CONFIG or --graph FILE is needed; see `colossal plan --help`");
  return options.graph.graph.empty() ? plan_of_run(app, options, program) : plan_of_graph(app, options);
}

}  // namespace colossal::cli
