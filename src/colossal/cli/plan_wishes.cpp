#include "colossal/cli/plan_wishes.h"

#include <CLI/CLI.hpp>

namespace colossal::cli {

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

}  // namespace colossal::cli
