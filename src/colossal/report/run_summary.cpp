#include "colossal/report/run_summary.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"

namespace colossal::report {
namespace {

/// Returns the values of a name; empty if no step has it.
std::vector<double> column_values(const RecordedSteps& steps, std::string_view name) {
  const MetricColumn* column = steps.find(name);
  return column ? column->values : std::vector<double>();
}

/// Returns the median of the finite values, without the first one, which includes the warm-up. A single value is
/// returned as it is; 0 if there is none.
double median(std::vector<double> values) {
  values.erase(std::remove_if(values.begin(), values.end(), [](double v) { return !std::isfinite(v); }), values.end());
  if (values.size() > 1) values.erase(values.begin());
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RunSummary summarize(const RecordedSteps& steps) {
  RunSummary summary;
  if (steps.empty()) return summary;
  for (const double tokens : column_values(steps, "tokens")) summary.tokens += tokens;
  for (const double seconds : column_values(steps, "seconds"))
    summary.seconds += std::isfinite(seconds) && seconds > 0 ? seconds : 0;
  for (const double bytes : column_values(steps, "peak_bytes"))
    if (bytes > static_cast<double>(summary.peak_bytes) && bytes < 1e18)
      summary.peak_bytes = static_cast<int64_t>(bytes);
  const size_t last = steps.size() - 1;
  if (const MetricColumn* evaluated = steps.find("eval_loss"); evaluated && !evaluated->at.empty()) {
    summary.eval_loss = evaluated->values.back();
    summary.perplexity = steps.value("perplexity", evaluated->at.back());
    summary.accuracy = steps.value("accuracy", evaluated->at.back());
  }
  summary.steps = steps.numbers().back();
  summary.first_loss = steps.value("loss", 0);
  summary.loss = steps.value("loss", last);
  summary.tokens_per_second = median(column_values(steps, "tokens_per_second"));
  if (steps.value("mfu", last)) summary.mfu = median(column_values(steps, "mfu"));
  return summary;
}

std::string layout_text(const std::vector<MeshAxis>& mesh) {
  double ranks = 1;
  std::string axes;
  for (const MeshAxis& axis : mesh) {
    ranks *= axis.size;
    if (axis.size > 1) axes += concat(axes.empty() ? ": " : " x ", axis.name, " ", axis.size);
  }
  return concat(ranks, ranks == 1 ? " rank" : " ranks", axes);
}

}  // namespace colossal::report
