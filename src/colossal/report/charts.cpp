#include "colossal/report/charts.h"

#include <algorithm>
#include <map>

#include "colossal/base/error.h"

namespace colossal::report {
namespace {

/// A chart with the plot name of its metrics' rows, to which the title adds a unit.
struct NamedChart {
  std::string plot;
  Chart chart;
  std::vector<std::string> first = {};  // metrics that it draws first, whatever plot their rows name
};

NamedChart own_chart(const std::string& plot, const std::string& unit, bool from_zero, bool smooth, bool log,
                     const std::vector<std::string>& first = {}) {
  return {plot, {.title = plot, .unit = unit, .from_zero = from_zero, .smooth = smooth, .log = log}, first};
}

// The library's own charts, in the order of the page, with the properties that do not follow from a unit. An evaluation
// loss has a second chart of its own, because the training loss would hide its small changes. The total memory of a
// device is drawn before its parts.
std::vector<NamedChart> own_charts() {
  return {
      own_chart("Loss", "number", false, true, true),
      own_chart("Evaluation loss", "number", false, false, true, {"eval_loss"}),
      own_chart("Held-out accuracy", "share", true, false, false),
      own_chart("Learning rate", "number", true, false, true),
      own_chart("Gradient norm", "number", true, true, true),
      own_chart("Tokens per second", "number", true, true, true),
      own_chart("Share of the peak", "share", true, true, false),
      own_chart("Step time", "seconds", true, true, true),
      own_chart("Peak memory of a rank", "bytes", true, false, true),
      own_chart("Parameters, gradients and states", "bytes", true, false, true),
      own_chart("Moved in a step", "bytes", true, false, true),
      own_chart("Largest device of a rank", "bytes", true, false, true, {"tiers.device_peak_bytes"}),
      own_chart("Copied in a step", "bytes", true, false, true),
  };
}

NamedChart chart_of(const MetricEntry& entry) {
  const auto& unit = entry.unit;
  if (unit == "bytes") return own_chart(entry.plot, "bytes", true, true, true);
  if (unit == "s") return own_chart(entry.plot, "seconds", true, true, true);
  if (unit == "share") return own_chart(entry.plot, "share", true, true, false);
  NamedChart chart = own_chart(entry.plot, "number", false, true, true);
  if (!unit.empty()) chart.chart.title = concat(entry.plot, " (", unit, ")");
  return chart;
}

void draw_in(Chart& chart, const std::string& name, const MetricEntry& entry) {
  const bool is_there =
      std::any_of(chart.lines.begin(), chart.lines.end(), [&](auto& line) { return line.name == name; });
  if (!is_there) chart.lines.push_back({name, entry.legend.empty() ? name : entry.legend});
}

}  // namespace

std::vector<Chart> charts_of(const std::vector<RecordedRun>& runs) {
  std::vector<NamedChart> charts = own_charts();
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < charts.size(); ++i) places.emplace(charts[i].plot, i);
  std::vector<std::string> names;  // names in order of appearance
  std::map<std::string, MetricEntry> entries;
  for (const RecordedRun& run : runs)
    for (const MetricColumn& column : run.steps.columns())
      if (!column.at.empty() && entries.emplace(column.name, entry_of(run.names, column.name)).second)
        names.push_back(column.name);
  for (NamedChart& chart : charts)
    for (const std::string& name : chart.first)
      if (const auto entry = entries.find(name); entry != entries.end()) draw_in(chart.chart, name, entry->second);
  for (const std::string& name : names) {
    const MetricEntry& entry = entries.at(name);
    if (entry.plot.empty()) continue;
    const auto [place, is_new] = places.emplace(entry.plot, charts.size());
    if (is_new) charts.push_back(chart_of(entry));
    draw_in(charts[place->second].chart, name, entry);
  }
  std::vector<Chart> drawn;
  for (NamedChart& chart : charts)
    if (!chart.chart.lines.empty()) drawn.push_back(std::move(chart.chart));
  return drawn;
}

}  // namespace colossal::report
