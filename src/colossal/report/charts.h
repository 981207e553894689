// The charts of a page and the curves in each, derived from the metrics that the page's runs recorded, and the data of
// the page's script that draws them.
//
//   for (const Chart& chart : charts_of(runs))
//     for (const ChartLine& line : chart.lines) draw(chart.title, line.legend, runs[0].steps.find(line.name));
#pragma once
#include <string>
#include <vector>

#include "colossal/report/recorded_run.h"

namespace colossal::report {

/// One curve of a chart.
struct ChartLine {
  std::string name;    ///< name of the metric
  std::string legend;  ///< name of the curve
};

/// A chart and its curves.
struct Chart {
  std::string title;       ///< followed by the unit of the values if `unit` does not say it
  std::string unit;        ///< how values are written: "number", "bytes", "seconds" or "share" (in percent)
  bool from_zero = false;  ///< the y axis starts at 0
  bool smooth = true;      ///< the reader may smooth the curves
  bool log = true;         ///< the reader may make the y axis logarithmic
  std::vector<ChartLine> lines = {};
};

/// Returns the charts that have at least one curve. The library's own charts are first, in a fixed order; charts of
/// other metrics follow in order of appearance. Metrics with the same plot share a chart. A metric whose plot is empty
/// is drawn only if one of the library's own charts names it. If runs describe a name differently, the first run
/// counts.
std::vector<Chart> charts_of(const std::vector<RecordedRun>& runs);

/// A script element of type application/json with the id "data":
///   {"charts": [{"title", "unit", "zero", "smooth", "log", "lines": [{"key", "name"}]}],
///    "runs": [{"name", "rows": {"step", "time", "tokens"}, "series": {key: series},
///              "ranks"?: {"names": [], "seconds": [series], "peak_bytes": [series]}}]}
/// `charts` is the result of charts_of(); a key is the name of a metric. A series is {"i", "y", "bad"?, "s"?: {"i",
/// "y", "n"}}: `i` is the row number, `bad` the number of values that are not finite. Such a value is stored as a text.
/// Series of more than 1000 points are thinned to that number, keeping the lowest and the highest value of each
/// stretch. `s` then holds means of `n` values, for smooth curves. Up to 64 ranks have a series each; with more ranks
/// the series are the lowest, the median and the highest value of each step.
/// Cost: linear in the steps. Size: at most about 50 KB for each metric of a run, and 1 MB for its ranks.
std::string chart_data(const std::vector<RecordedRun>& runs);

}  // namespace colossal::report
