// The metrics that the library itself writes. One table has a row for each: its name, unit, plot, tag and format.
//
//   metrics.add(known_metric("eval_loss", 2.5));      // a row with the unit, plot and tag of every evaluation loss
//
// The table also describes the names in run folders of older versions, which have no metrics.json.
#pragma once
#include <optional>
#include <string_view>

#include "colossal/base/metric.h"

namespace colossal {

/// Returns the row with this name, with value 0. Returns nothing if the library writes no such metric.
std::optional<Metric> find_known_metric(std::string_view name);

/// Returns the row with this name, with the given value. Errors ("metrics"): the table has no such name.
Metric known_metric(std::string_view name, Metric::Value value);

}  // namespace colossal
