#include "colossal/cli/plan_run.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/progress.h"
#include "colossal/cli/plan.h"
#include "colossal/cli/whole_program.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/models/registry.h"
#include "colossal/plan/prediction.h"
#include "colossal/predict/page.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "colossal/run/calibrate.h"
#include "colossal/run/data.h"
#include "colossal/run/layout_keys.h"
#include "colossal/run/program.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/train/device_budget.h"

namespace colossal::cli {
namespace {

/// Prints a notice once: local ranks and ranks of a launcher other than the first stay silent.
void print_notice_of_plan(const std::string& notice) {
  const comm::Environment environment = comm::read_environment(comm::process_variables());
  const bool is_local_rank = environment.launcher == comm::Launcher::Colossal;  // the process that started it printed
  if (!notice.empty() && !is_local_rank && environment.rank == 0)
    std::fprintf(stderr, "colossal: %s\n", notice.c_str());
}

/// A search replaces the layout of the file, so only the rest has to be legal; the layouts it tries are checked there.
/// `auto` refuses keys of a layout, so such a file is checked as it is.
void check_given(const run::Config& config, bool searches) {
  (searches && !config.parallel.automatic ? run::without_layout(config, {}) : config).validate();
}

}  // namespace

run::Config given_plan(const PlanWishes& wishes, const run::Program* program) {
  run::GivenConfig given = run::read_given_config(wishes.config, wishes.flags);
  const run::Program used = whole_program(program);
  run::complete_keys(given.config, used.objectives, run::tables_of(used.adapters), &given.notices);
  for (const std::string& notice : given.notices) print_notice_of_plan(notice);
  if (wishes.ranks > 0) predict::set_ranks(given.config, wishes.ranks);
  check_given(given.config, wishes.search);
  return std::move(given.config);
}

run::ClusterChoice cluster_of_plan(const PlanWishes& wishes, const run::RunConfig& run) {
  const bool on_gpus = run.device != "cpu" && comm::cuda_devices().count() > 0;
  run::ClusterChoice cluster = run::choose_cluster(wishes.cluster.empty() ? "this" : wishes.cluster, on_gpus);
  if (!cluster.note.empty()) std::fprintf(stderr, "colossal: %s\n", cluster.note.c_str());
  return cluster;
}

PlannedRun resolve_plan(run::Config config, const run::ClusterChoice& cluster, const run::Program* program) {
  predict::set_device(config, cluster.profile);
  const run::Program used = whole_program(program);
  run::check_training(config, used);
  const run::ResolvedModel model = run::resolve_run(config, used);
  run::check_text(config, model);
  model.objective.write_keys(config);
  train::RunModels models = train::models_of(config, model);
  return {{std::move(config), std::move(models)}, cluster.profile, cluster.note};
}

PlannedRun resolve_plan(const PlanWishes& wishes, const run::Program* program) {
  run::Config config = given_plan(wishes, program);
  const run::ClusterChoice cluster = cluster_of_plan(wishes, config.run);
  PlannedRun run = resolve_plan(config, cluster, program);
  if (config.model.vocabulary > 0 || !config.model.from.empty() || config.tokenizer() != "bytes") return run;
  const int64_t of_bytes = run.models.main().shape.vocabulary,
                own = (program ? *program : run::built_in()).models.resolve({.name = config.model.name}).vocabulary;
  if (of_bytes == 0 || own <= of_bytes) return run;
  config.model.vocabulary = own;
  run = resolve_plan(std::move(config), cluster, program);
  run.vocabulary_note =
      concat("the vocabulary is that of ", run.config.model.name, ", ", own,
             " ids; a run with data.tokenizer = \"bytes\" has ", of_bytes, ", unless it sets model.vocabulary");
  return run;
}

ProgressStyle style_on_terminals(std::FILE* stream) {
  return ::isatty(::fileno(stream)) ? ProgressStyle::kTerminal : ProgressStyle::kSilent;
}

void add_notes(const PlannedRun& run, plan::Prediction& prediction) {
  for (const std::string* note : {&run.vocabulary_note, &run.note})
    if (!note->empty()) prediction.assumptions.push_back(*note);
}

int plan_run(const PlanWishes& wishes, const run::Program* program) {
  if (wants_search(wishes)) {
    if (wishes.check || !wishes.report.empty())
      throw UsageError(
          "colossal plan: --check and --report need one layout, and this run searches for it; run them with the table "
          "that the search prints");
    return plan_search(wishes, program);
  }
  if (wishes.check) return plan_check(wishes, program);
  const PlannedRun run = resolve_plan(wishes, program);
  train::check_device_budget(run);
  const plan::Cluster cluster = predict::cluster_of(run.config.parallel.ranks(), run.profile);
  Progress progress("planning", 0, stderr, style_on_terminals(stderr));
  const predict::RecordedRoles roles = predict::record_roles(
      run, cluster, [&](int64_t done, int64_t all) { progress.update(done, concat("of ", all, " ranks recorded")); });
  plan::Prediction prediction = predict::predict_step(run, roles, cluster);
  if (!prediction.fits)
    prediction.remedies = predict::remedies(run, cluster, [&](int64_t recorded) {
      progress.update(recorded, "changes tried, because the layout does not fit");
    });
  progress.finish();
  predict::add_models(prediction, run);
  add_notes(run, prediction);
  if (!wishes.report.empty())
    write_file(wishes.report, predict::prediction_page(wishes.config, run.config, roles, prediction, cluster));
  std::fputs((wishes.json ? plan::to_json(prediction) + "\n" : plan::to_text(prediction)).c_str(), stdout);
  return 0;
}

}  // namespace colossal::cli
