#include "colossal/report/run_summary.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"

namespace colossal::report {
namespace {

/// Median of the finite values but the first, which warms up; of the only one if there is one; 0 without any.
template <class Number>
double median(const std::vector<StepMetrics>& steps, Number StepMetrics::* member) {
  std::vector<double> values;
  for (const StepMetrics& metrics : steps) {
    const std::optional<double> value = metrics.*member;
    if (value && std::isfinite(*value)) values.push_back(*value);
  }
  if (values.size() > 1) values.erase(values.begin());
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RunSummary summarize(const std::vector<StepMetrics>& steps) {
  RunSummary summary;
  if (steps.empty()) return summary;
  for (const StepMetrics& metrics : steps) {
    summary.tokens += static_cast<double>(metrics.tokens);
    summary.seconds += std::isfinite(metrics.seconds) && metrics.seconds > 0 ? metrics.seconds : 0;
    summary.peak_bytes = std::max(summary.peak_bytes, metrics.peak_bytes);
    if (!metrics.eval_loss) continue;
    summary.eval_loss = metrics.eval_loss;
    summary.perplexity = metrics.perplexity;
    summary.accuracy = metrics.accuracy;
  }
  summary.steps = steps.back().step;
  summary.first_loss = steps.front().loss;
  summary.loss = steps.back().loss;
  summary.tokens_per_second = median(steps, &StepMetrics::tokens_per_second);
  if (steps.back().mfu) summary.mfu = median(steps, &StepMetrics::mfu);
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
