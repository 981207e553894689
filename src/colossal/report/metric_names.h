// metrics.json: the unit, plot and legend of each name in metrics.jsonl, which later reports need to draw it.
//
//   MetricNames names = read_metric_names("runs/a/metrics.json");
//   names.emplace("rmse", MetricEntry{.unit = "m", .plot = "Error", .legend = "held-out"});
//   write_file("runs/a/metrics.json", to_json(names));      // {"rmse": {"unit": "m", "plot": "Error", ...}}
#pragma once
#include <map>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::report {

/// The members of Metric that describe a curve. Empty texts are left out of the file.
struct MetricEntry {
  std::string unit = {}, plot = {}, legend = {};

  void fields(Fields& f);
};

using MetricNames = std::map<std::string, MetricEntry, std::less<>>;

/// Reads the file, an object of objects. Members of an entry that this version does not support are ignored.
/// Errors ("metrics"): the file has other contents. Errors ("file"): it cannot be read.
MetricNames read_metric_names(const std::string& path);

/// Returns the contents of the file, with a line end.
std::string to_json(const MetricNames& names);

/// Returns the description of a name. Without an entry it is the description of the library's own metric of that name
/// (base/known_metrics.h). If there is no such metric, it is a plain line in a plot of its own.
MetricEntry entry_of(const MetricNames& names, const std::string& name);

}  // namespace colossal::report
