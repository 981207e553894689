// The metrics of all steps of a run: a column of numbers for each name.
//
//   RecordedSteps steps;
//   steps.add(1, {{"loss", 5.5}, {"eval_loss", 5.6}});
//   steps.add(2, {{"loss", 5.4}});
//   steps.value("eval_loss", 0);      // 5.6; value("eval_loss", 1) has no value
//
// Columns hold the numbers alone, so a long run of many metrics takes 16 bytes a value.
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

struct MetricColumn {
  std::string name;
  std::vector<size_t> at = {};      ///< indices of the steps that have a value, rising
  std::vector<double> values = {};  ///< one for each index
};

class RecordedSteps {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  static constexpr size_t kMostNames = 10'000;

  /// Appends a step. If a name is there twice, its last value counts. Names after the first kMostNames are left out,
  /// so that a damaged file cannot make a page of a million plots.
  void add(int64_t step, const Values& values);
  /// Removes the last step, which must be there.
  void remove_last();

  size_t size() const { return numbers_.size(); }
  bool empty() const { return numbers_.empty(); }
  /// The number of each step, in the order in which they were added.
  const std::vector<int64_t>& numbers() const { return numbers_; }
  /// In the order in which the names appeared. A column may have lost all of its values to remove_last().
  const std::vector<MetricColumn>& columns() const { return columns_; }
  /// Null if no step had the name.
  const MetricColumn* find(std::string_view name) const;
  /// The value at an index of numbers(); nothing if that step has none. Cost: logarithmic in the steps.
  std::optional<double> value(std::string_view name, size_t index) const;
  /// The value of each step, with `missing` for steps without one.
  std::vector<double> values(std::string_view name, double missing) const;

 private:
  MetricColumn* column(const std::string& name, size_t guess);

  std::vector<int64_t> numbers_;
  std::vector<MetricColumn> columns_;
  std::map<std::string, size_t, std::less<>> places_;
};

}  // namespace colossal::report
