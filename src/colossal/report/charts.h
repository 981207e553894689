// The charts of a page and the curves in each, derived from the metrics that the page's runs recorded.
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

}  // namespace colossal::report
