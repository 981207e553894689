// The data that the page's script draws, as JSON in a script element.
#pragma once
#include <string>
#include <vector>

#include "colossal/report/recorded_run.h"

namespace colossal::report {

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
