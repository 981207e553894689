// The metrics of all steps of a run, with a column of numbers for each name.
//
//   RecordedSteps steps;
//   steps.add(1, {{"loss", 5.5}, {"eval_loss", 5.6}});
//   steps.add(2, {{"loss", 5.4}});
//   steps.value("eval_loss", 0);      // 5.6; value("eval_loss", 1) has no value
//
// Columns store only the values that exist, so a long run with many metrics takes 16 bytes per value.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::report {

/// The values of one metric.
struct MetricColumn {
  std::string name;
  std::vector<size_t> at = {};      ///< indices of the steps that have a value, ascending
  std::vector<double> values = {};  ///< one value for each index
};

/// A table of metrics with one row per step.
class RecordedSteps {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  static constexpr size_t kMaxNames = 10'000;

  /// Appends a step. If a name occurs twice, its last value counts. Names beyond the first kMaxNames are dropped, so
  /// that a damaged file cannot cause a page with a million plots.
  void add(int64_t step, const Values& values);
  /// Removes the last step, which must exist.
  void remove_last();

  size_t size() const { return numbers_.size(); }
  bool empty() const { return numbers_.empty(); }
  /// Returns the number of each step, in the order of add().
  const std::vector<int64_t>& numbers() const { return numbers_; }
  /// Returns the columns in order of first appearance. A column may be empty after remove_last().
  const std::vector<MetricColumn>& columns() const { return columns_; }
  /// Returns the column of a name; null if no step had the name.
  const MetricColumn* find(std::string_view name) const;
  /// Returns the value at an index of numbers(); no value if that step has none. Cost: logarithmic in the steps.
  std::optional<double> value(std::string_view name, size_t index) const;
  /// Returns the value of each step, with `missing` for steps without one.
  std::vector<double> values(std::string_view name, double missing) const;

 private:
  MetricColumn* column(const std::string& name, size_t guess);

  std::vector<int64_t> numbers_;
  std::vector<MetricColumn> columns_;
  std::map<std::string, size_t, std::less<>> places_;
};

}  // namespace colossal::report
