#include <algorithm>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/base/progress.h"
#include "colossal/plan/prediction.h"

namespace colossal::plan {
namespace {

using TableRow = std::vector<std::string>;

/// Returns the rows with columns that are as wide as their longest cell.
std::string aligned(const std::vector<TableRow>& rows) {
  std::vector<size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const TableRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i)
      text += i + 1 == row.size() ? row[i] : row[i] + std::string(widths[i] + 2 - row[i].size(), ' ');
    text += "\n";
  }
  return text;
}

std::string rounded(double value) { return colossal::text_of(value, 4); }

std::string bytes_cell(double bytes) { return readable_bytes(static_cast<int64_t>(bytes)); }

std::string memory_table(const std::vector<PredictedRole>& roles) {
  std::vector<TableRow> rows{{"role", "ranks", "first", "peak", "process", "parameters", "gradients", "states",
                              "activations", "buffers", "host"}};
  for (const PredictedRole& role : roles) {
    TableRow row{role.name, std::to_string(role.ranks), std::to_string(role.first_rank),
                 readable_bytes(role.peak_bytes), readable_bytes(role.resident_bytes)};
    const StepMemory::Kinds& k = role.kinds;
    for (const int64_t bytes : {k.parameters, k.gradients, k.states, k.activations, k.buffers, k.host})
      row.push_back(readable_bytes(bytes));
    rows.push_back(std::move(row));
  }
  std::string text = "memory of a rank\n" + aligned(rows);
  for (const PredictedRole& role : roles) {
    text += concat("  ", role.name, ": fullest in ", role.fullest, "\n");
    if (!role.recompute.empty()) text += concat("  ", role.name, ": ", role.recompute, "\n");
  }
  return text;
}

std::string calls_table(const std::vector<PredictedRole>& roles) {
  std::vector<TableRow> rows{{"role", "group", "collective", "phase", "calls", "sent"}};
  std::vector<TableRow> links{{"role", "link", "calls", "bytes"}};
  for (const PredictedRole& role : roles) {
    for (const PredictedCalls& row : role.calls)
      rows.push_back(
          {role.name, row.group, row.collective, row.phase, std::to_string(row.calls), bytes_cell(row.bytes)});
    for (const PredictedLink& row : role.links)
      links.push_back({role.name, row.link, std::to_string(row.calls), bytes_cell(row.bytes)});
  }
  if (rows.size() == 1 && links.size() == 1) return "calls of a rank\nnone\n";
  std::string text;
  if (rows.size() > 1) text += "calls of a rank\n" + aligned(rows);
  if (links.size() > 1) text += concat(rows.size() > 1 ? "\n" : "", "traffic of a rank by link\n", aligned(links));
  return text;
}

std::string sum_of(const StepParts& s) {
  return concat(rounded(s.compute), " compute + ", rounded(s.communication), " communication + ", rounded(s.bubble),
                " bubble + ", rounded(s.optimizer), " optimizer + ", rounded(s.input), " input");
}

std::string seconds_table(const Prediction& prediction) {
  std::string text =
      concat("seconds of a step\n", rounded(prediction.step_seconds), " = ", sum_of(prediction.seconds), "\n");
  if (prediction.roles.size() > 1)
    for (const PredictedRole& role : prediction.roles)
      text += concat("  ", role.name, ": ", sum_of(role.seconds), "\n");
  if (prediction.mfu > 0) text += concat("MFU ", rounded(100 * prediction.mfu), " %: ", prediction.mfu_formula, "\n");
  return text;
}

std::string long_run_text(const Prediction& prediction) {
  std::string text = concat("goodput ", rounded(100 * prediction.goodput), " % of the time of a long run");
  if (prediction.checkpoint_interval > 0)
    text += concat(", with a checkpoint of ", readable_duration(prediction.checkpoint_seconds), " every ",
                   readable_duration(prediction.checkpoint_interval));
  else
    text += ", without the time of checkpoints, because the profile has no disk";
  return text + "\n";
}

std::string load_text(const RankLoads& loads) {
  if (loads.worst <= 1) return "";
  return concat("At the largest rank load that the config permits, ", rounded(loads.worst), ", a rank needs ",
                readable_bytes(loads.peak_bytes), ".\n");
}

std::string fit_text(const Prediction& prediction) {
  if (prediction.fits) return concat("The layout fits.\n", load_text(prediction.rank_load));
  const bool fits_some = prediction.rank_load.fitting > 0 && prediction.rank_load.worst > 1;
  std::string text =
      concat(fits_some ? "The layout fits at some loads only: " : "The layout does not fit: ", prediction.limit, "\n");
  if (prediction.remedies.empty()) return text + "No single change or pair of changes was found that makes it fit.\n";
  text += "Changes that make it fit, the fastest first:\n";
  for (const Remedy& remedy : prediction.remedies) {
    std::string table = remedy.table;
    while (table.ends_with('\n')) table.pop_back();
    text += concat("\n# ", rounded(remedy.step_seconds), " seconds, peak ", readable_bytes(remedy.peak_bytes), "\n",
                   remedy.training.empty() ? "" : concat("# it changes what the run learns: ", remedy.training, "\n"),
                   table, "\n");
  }
  return text;
}

std::string model_text(const PredictedModel& model) {
  if (!model.held.empty())
    return concat(model.name, ": ", readable_bytes(model.bytes), " over all ranks, ",
                  model.held == "always" ? "while answers are drawn and in updates" : "while answers are drawn");
  const std::string name = model.name.empty() ? "main model" : model.name;
  if (model.parameters == 0) return concat(name, ": the main model without its adapters");
  return concat(name, ": ", model.parameters, " parameters, ",
                model.trained == 0 ? "frozen" : concat(model.trained, " of them trained"), ", ",
                readable_bytes(model.bytes), " over all ranks", model.needs.empty() ? "" : ": ", to_text(model.needs));
}

}  // namespace

std::string model_line(const Prediction& prediction) {
  if (prediction.parameters <= 0) return "";
  std::string text = concat(fixed_text(prediction.parameters, 0), " parameters, ",
                            prediction.vocabulary > 0 ? concat("vocabulary ", prediction.vocabulary) : "no vocabulary");
  const std::vector<PredictedModel>& models = prediction.models;
  if (models.empty() || (models.size() == 1 && models[0].trained == models[0].parameters)) return text;
  for (const PredictedModel& model : models) text += "\n" + model_text(model);
  return text;
}

std::string to_text(const std::vector<PredictedNeed>& needs) {
  std::string text;
  for (size_t i = 0; i < needs.size(); ++i) {
    const bool ends = i + 1 == needs.size() || needs[i + 1].place != needs[i].place;
    text += concat(i > 0 ? ", " : "", needs[i].what, " ", readable_bytes(needs[i].bytes),
                   ends ? concat(" (", needs[i].place, ")") : "");
  }
  return text;
}

std::string to_text(const Prediction& prediction) {
  const std::string model = model_line(prediction);
  std::string text =
      concat(model, model.empty() ? "" : "\n", prediction.ranks, prediction.ranks == 1 ? " rank, " : " ranks, ",
             rounded(prediction.step_seconds), " seconds a step, peak ", readable_bytes(prediction.peak_bytes), "\n\n",
             memory_table(prediction.roles), "\n", calls_table(prediction.roles), "\n", seconds_table(prediction),
             long_run_text(prediction), "\n", fit_text(prediction));
  if (!prediction.assumptions.empty()) text += "\nassumptions\n";
  for (const std::string& line : prediction.assumptions) text += concat("- ", line, "\n");
  return text;
}

}  // namespace colossal::plan
