#include "colossal/cli/plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/cli/plan_calibrate.h"
#include "colossal/cli/plan_graph.h"

namespace colossal::cli {

int plan(const Arguments& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--calibrate") != arguments.end()) return plan_calibrate(arguments);
  CLI::App app(
      "Lists the operators of a traced graph with their costs, the strategies of one of them, or the fastest plan on a "
      "mesh.",
      "colossal plan");
  GraphWishes wishes;
  std::string memory;
  app.add_option("--graph", wishes.graph, "graph.json of a traced module");
  app.add_option("--node", wishes.node, "list every strategy of this node with its cost");
  app.add_option("--mesh", wishes.mesh, "axes of the ranks, such as data=2,tensor=4; without --node: find a plan");
  app.add_option("--memory", memory, "memory of a rank for the plan, such as 40GiB; default: no limit");
  app.add_option("--plan", wishes.plan, "price the plan in this file, which may be edited");
  app.add_option("--to", wishes.to, "file for the plan, as JSON");
  app.add_option("--cluster", wishes.cluster,
                 "hardware: a100-8x, h100-8x, h200-8x, a profile's file, or `this` after --calibrate")
      ->capture_default_str();
  app.add_flag("--json", wishes.json, "print one JSON object");
  bool calibrates = false;  // handled above; listed here
  app.add_flag("--calibrate", calibrates,
               "measure this machine instead; `colossal plan --calibrate --help` lists the options");
  parse(app, arguments);
  if (wishes.graph.empty()) throw UsageError("colossal plan: --graph FILE is needed; see `colossal plan --help`");
  if (!wishes.node.empty()) refuse_options(app, {"--memory", "--plan", "--to"}, "with --node");
  if (wishes.mesh.empty() && wishes.plan.empty()) refuse_options(app, {"--memory", "--to"}, "without --mesh or --plan");
  if (!memory.empty()) {
    const auto bytes = parse_bytes(memory);
    if (!bytes || *bytes == 0)
      throw UsageError("colossal plan: --memory must be " + std::string(kSizeRule) + ": got `" + memory + "`");
    wishes.memory = *bytes;
  }
  return plan_graph(wishes);
}

}  // namespace colossal::cli
