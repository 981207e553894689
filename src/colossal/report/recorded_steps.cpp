#include "colossal/report/recorded_steps.h"

#include <algorithm>

namespace colossal::report {

/// Returns the column of a name, which is created if it is new; null if there are too many.
MetricColumn* RecordedSteps::column(const std::string& name, size_t guess) {
  // Most steps have the names of the previous step in the same order; the guess saves the look-up in the map.
  if (guess < columns_.size() && columns_[guess].name == name) return &columns_[guess];
  if (const auto place = places_.find(name); place != places_.end()) return &columns_[place->second];
  if (columns_.size() == kMaxNames) return nullptr;
  places_.emplace(name, columns_.size());
  columns_.push_back({.name = name});
  return &columns_.back();
}

void RecordedSteps::add(int64_t step, const Values& values) {
  const size_t index = numbers_.size();
  numbers_.push_back(step);
  for (size_t i = 0; i < values.size(); ++i) {
    MetricColumn* column = this->column(values[i].first, i);
    if (!column) continue;
    if (!column->at.empty() && column->at.back() == index) {
      column->values.back() = values[i].second;
      continue;
    }
    column->at.push_back(index);
    column->values.push_back(values[i].second);
  }
}

void RecordedSteps::remove_last() {
  numbers_.pop_back();
  for (MetricColumn& column : columns_) {
    if (column.at.empty() || column.at.back() != numbers_.size()) continue;
    column.at.pop_back();
    column.values.pop_back();
  }
}

const MetricColumn* RecordedSteps::find(std::string_view name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &columns_[place->second];
}

std::optional<double> RecordedSteps::value(std::string_view name, size_t index) const {
  const MetricColumn* column = find(name);
  if (!column) return std::nullopt;
  const auto at = std::lower_bound(column->at.begin(), column->at.end(), index);
  if (at == column->at.end() || *at != index) return std::nullopt;
  return column->values[static_cast<size_t>(at - column->at.begin())];
}

std::vector<double> RecordedSteps::values(std::string_view name, double missing) const {
  std::vector<double> all(size(), missing);
  if (const MetricColumn* column = find(name))
    for (size_t i = 0; i < column->at.size(); ++i) all[column->at[i]] = column->values[i];
  return all;
}

}  // namespace colossal::report
