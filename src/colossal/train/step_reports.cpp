#include "colossal/train/step_reports.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/nn/reports.h"

namespace colossal::train {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();  // a maximum of no values

std::vector<double> reduced(comm::Group& ranks, const std::vector<double>& own, comm::Reduce reduce) {
  if (own.empty()) return own;
  at::Tensor values = at::tensor(own, at::kDouble);
  ranks.all_reduce(values, reduce).wait();
  const double* first = values.const_data_ptr<double>();
  return {first, first + values.numel()};
}

}  // namespace

StepReports::StepReports(const models::Model& model, at::Device device, const std::string& name)
    : model_(model), prefix_(name.empty() ? "" : name + ".") {
  if (!model.reports.declared().empty()) accumulator_ = std::make_shared<nn::ReportAccumulator>(model.reports, device);
  begin_step();
}

void StepReports::begin_step() {
  sums_.assign(static_cast<size_t>(model_.reports.sums()), 0);
  maxima_.assign(static_cast<size_t>(model_.reports.maxima()), kNone);
  micro_batches_ = 0;
}

void StepReports::begin_pass(double loss_factor) {
  if (accumulator_) accumulator_->begin(loss_factor);
}

std::vector<at::Tensor> StepReports::numbers() const {
  return accumulator_ ? std::vector<at::Tensor>{accumulator_->values()} : std::vector<at::Tensor>{};
}

void StepReports::end_pass(std::span<const double> values, int64_t micro_batches) {
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += values[i];
  for (size_t i = 0; i < maxima_.size(); ++i) {
    const double value = values[sums_.size() + i];
    // A NaN compares as false, so it would be lost here or between ranks.
    maxima_[i] = std::isnan(value) ? std::numeric_limits<double>::infinity() : std::max(maxima_[i], value);
  }
  micro_batches_ += micro_batches;
}

std::vector<std::vector<double>> StepReports::joined(comm::Group& ranks) const {
  const nn::Reports& reports = model_.reports;
  std::vector<double> sums = sums_, maxima = maxima_;
  for (const nn::Reports::Declared& declared : reports.declared()) {
    if (reports.joins(declared)) continue;
    const bool is_max = declared.over == nn::Over::Max;
    const auto first = (is_max ? maxima : sums).begin() + declared.first;
    std::fill(first, first + declared.size, is_max ? kNone : 0);
  }
  sums = reduced(ranks, sums, comm::Reduce::Sum);
  maxima = reduced(ranks, maxima, comm::Reduce::Max);
  const auto micro_batches = static_cast<double>(std::max<int64_t>(1, micro_batches_));
  std::vector<std::vector<double>> values;
  for (const nn::Reports::Declared& declared : reports.declared()) {
    const auto first = (declared.over == nn::Over::Max ? maxima : sums).begin() + declared.first;
    std::vector<double>& value = values.emplace_back(first, first + declared.size);
    for (double& element : value) {
      if (declared.over == nn::Over::Same) element /= micro_batches;
      if (declared.over == nn::Over::Mean) element /= micro_batches * static_cast<double>(reports.ranks());
    }
  }
  return values;
}

std::vector<Metric> StepReports::named(std::vector<Metric> rows) const {
  for (Metric& row : rows) row.name = prefix_ + row.name;
  return rows;
}

std::vector<Metric> StepReports::loss_rows() const { return named(own_loss_rows()); }

std::vector<Metric> StepReports::own_loss_rows() const {
  std::vector<Metric> rows;
  for (const nn::Reports::Declared& declared : model_.reports.declared())
    if (declared.has_row) rows.push_back({.name = declared.name, .value = 0.0, .plot = "Loss terms"});
  return rows;
}

std::vector<Metric> StepReports::end_step(comm::Group& ranks, bool skipped) {
  if (micro_batches_ == 0) return {};
  const nn::Reported reported{.values = joined(ranks), .skipped = skipped, .micro_batches = micro_batches_};
  std::vector<Metric> rows = own_loss_rows();
  auto row = rows.begin();
  for (size_t i = 0; i < reported.values.size(); ++i)
    if (model_.reports.declared()[i].has_row) (row++)->value = reported.values[i].front();
  if (model_.end_step) model_.end_step(reported, rows);
  return named(std::move(rows));
}

}  // namespace colossal::train
