// metrics.json: the unit, plot and legend of each name in metrics.jsonl, so that a later report can draw it.
//
//   MetricNames names = read_metric_names("runs/a/metrics.json");
//   names.emplace("rmse", MetricEntry{.unit = "m", .plot = "Error", .legend = "held-out"});
//   write_file("runs/a/metrics.json", to_json(names));      // {"rmse": {"unit": "m", "plot": "Error", ...}}
#pragma once
#include <map>
#include <string>

namespace colossal::report {

/// The members of Metric that say how a curve is drawn. A text that is empty is left out of the file.
struct MetricEntry {
  std::string unit = {}, plot = {}, legend = {};
};

using MetricNames = std::map<std::string, MetricEntry, std::less<>>;

/// The object of objects in the file. Members of an entry that this version does not know are skipped.
/// Errors ("metrics"): the file holds something else. ("file"): it cannot be read.
MetricNames read_metric_names(const std::string& path);

/// The text of the file, with its end of line.
std::string to_json(const MetricNames& names);

/// How a name is drawn: as its entry says; without an entry as the library's own metric of that name
/// (base/known_metrics.h); and otherwise as a plain line in a plot of its own.
MetricEntry entry_of(const MetricNames& names, const std::string& name);

}  // namespace colossal::report
