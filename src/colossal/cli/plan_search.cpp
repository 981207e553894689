#include "colossal/cli/plan_search.h"

#include <cstdio>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/progress.h"
#include "colossal/cli/auto_layout.h"
#include "colossal/cli/plan.h"
#include "colossal/cli/plan_run.h"
#include "colossal/plan/prediction.h"
#include "colossal/predict/step.h"

namespace colossal::cli {
namespace {

/// Returns the table on one line: "data = 2, zero = 1".
std::string in_one_line(const std::string& table) {
  std::string line;
  for (const char c : table) line += c == '\n' ? "  " : std::string(1, c);
  while (line.ends_with(' ')) line.pop_back();
  return line;
}

}  // namespace

std::string to_text(const predict::SearchResult& found) {
  const std::string shallow = found.shallow > 0 ? concat(", ", found.shallow, " with few blocks") : "";
  const bool fit = found.best.front().prediction.fits;
  std::string text =
      concat(plan::model_line(found.best.front().prediction), "\n",
             fit ? "layouts that fit"
                 : "no layout was found that fits at every load of the experts; "
                   "layouts that fit at the most uneven loads",
             ", the fastest first (", found.tried, " are legal, ", found.recorded, " were simulated", shallow, ")\n");
  for (const std::string& kept : found.kept) text += concat("kept: ", kept, "\n");
  text += "\n  seconds      memory  layout\n";
  std::string above;  // the comparison of the layout above, which is not repeated
  for (const predict::FoundLayout& layout : found.best) {
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "%9.4g  %10s  ", layout.prediction.step_seconds,
                  readable_bytes(layout.prediction.peak_bytes).c_str());
    text += concat(numbers, in_one_line(layout.table), "\n");
    if (layout.why != above) text += concat(std::string(23, ' '), layout.why, "\n");
    above = layout.why;
  }
  const std::vector<std::string>& assumptions = found.best.front().prediction.assumptions;
  if (!assumptions.empty()) text += "\nassumptions\n";
  for (const std::string& line : assumptions) text += concat("- ", line, "\n");
  return text + "\n" + found.best.front().table;
}

std::string to_json(const predict::SearchResult& found) {
  nlohmann::ordered_json object = to_json_object(found.best.front().prediction);
  nlohmann::ordered_json best = nlohmann::ordered_json::array();
  for (const predict::FoundLayout& layout : found.best)
    best.push_back({{"step_seconds", layout.prediction.step_seconds},
                    {"peak_bytes", layout.prediction.peak_bytes},
                    {"why", layout.why},
                    {"table", layout.table}});
  object["best"] = std::move(best);
  object["kept"] = found.kept;
  return json_line(object);
}

bool wants_search(const PlanWishes& wishes) {
  return wishes.search || run::read_given_config(wishes.config, wishes.flags).config.parallel.automatic;
}

int plan_search(const PlanWishes& wishes, const run::Program* program) {
  PlanWishes without_ranks = wishes;
  without_ranks.ranks = 0;  // the search makes layouts of that many ranks
  const PlannedRun run = resolve_plan(without_ranks, program);
  const auto& parallel = run.config.parallel;
  int64_t ranks = wishes.ranks > 0 ? wishes.ranks : parallel.ranks();
  if (parallel.automatic && wishes.ranks == 0) ranks = ranks_of_auto(parallel, run.config.run, comm::cuda_devices());
  const plan::Cluster cluster = predict::cluster_of(ranks, run.profile);
  Progress progress("searching", 0, stderr, style_on_terminals(stderr));
  const auto show = [&](int64_t simulated, double best_seconds) {
    progress.update(simulated, best_seconds > 0 ? concat("layouts simulated, the best takes ", best_seconds, " s")
                                                : "layouts simulated, none fits yet");
  };
  predict::SearchResult found = predict::search(run, cluster, {.ranks = ranks, .keep = wishes.keep, .progress = show});
  progress.finish();
  add_notes(run, found.best.front().prediction);
  const std::string text = wishes.json ? to_json(found) + "\n" : to_text(found);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace colossal::cli
