#include "colossal/cli/plan_run.h"

#include <cstdio>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/plan/prediction.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"

namespace colossal::cli {
namespace {

void print_notice(const std::string& notice) {
  if (!notice.empty()) std::fprintf(stderr, "colossal: %s\n", notice.c_str());
}

}  // namespace

PlannedRun resolve_plan(const PlanWishes& wishes, const run::Program* program) {
  run::GivenConfig given = run::read_given_config(wishes.config, wishes.flags);
  for (const std::string& notice : given.notices) print_notice(notice);
  run::Config& config = given.config;
  if (wishes.ranks > 0) predict::set_ranks(config, wishes.ranks);
  config.validate();
  const run::ClusterChoice cluster = run::choose_cluster(wishes.cluster.empty() ? "this" : wishes.cluster);
  print_notice(cluster.note);
  predict::set_device(config, cluster.profile);
  run::ResolvedModel model = run::resolve_model(config, program ? *program : run::built_in());
  require(!model.adapter.treatment && !model.adapter.product, "plan",
          "a run with an adapter cannot be predicted: got the table of one in ", wishes.config, "; leave the table out");
  config.tables = model.objective.tables;
  return {std::move(config), std::move(model.shape), cluster.profile};
}

int plan_run(const PlanWishes& wishes, const run::Program* program) {
  const PlannedRun run = resolve_plan(wishes, program);
  const plan::Cluster cluster = predict::cluster_of(run.config, run.profile);
  plan::Prediction prediction = predict::predict_step(run.config, run.shape, cluster);
  if (!prediction.fits) prediction.remedies = predict::remedies(run.config, run.shape, cluster);
  std::fputs((wishes.json ? plan::to_json(prediction) + "\n" : plan::to_text(prediction)).c_str(), stdout);
  return 0;
}

}  // namespace colossal::cli
