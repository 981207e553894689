// Which charts a page has, and which curves are in each: it follows from the metrics that its runs recorded.
//
//   for (const Chart& chart : charts_of(runs))
//     for (const ChartLine& line : chart.lines) draw(chart.title, line.legend, runs[0].steps.find(line.name));
#pragma once
#include <string>
#include <vector>

#include "colossal/report/recorded_run.h"

namespace colossal::report {

struct ChartLine {
  std::string name;    ///< of the metric
  std::string legend;  ///< of the curve
};

struct Chart {
  std::string title;       ///< with the unit of the values behind it, if `unit` does not say it
  std::string unit;        ///< how values are written: "number", "bytes", "seconds" or "share" (in percent)
  bool from_zero = false;  ///< the y axis begins at 0
  bool smooth = true;      ///< curves may be smoothed
  bool log = true;         ///< the y axis may be logarithmic
  std::vector<ChartLine> lines = {};
};

/// The charts of the runs that have a curve: the library's own first, in a fixed order, then those of other metrics in
/// the order in which these appear. Rows with the same plot share a chart. If runs describe a name differently, the
/// first run counts.
std::vector<Chart> charts_of(const std::vector<RecordedRun>& runs);

}  // namespace colossal::report
