// The reports of training steps (nn/reports.h): from what the layers of a rank report to values of all ranks.
//
//   StepReports reports(model, device);
//   reports.begin_step();
//   reports.begin_pass(loss_scale / micro_batches);            // then passes, whose steps have reports.accumulator()
//   reports.end_pass(values_of(reports.numbers()), micro_batches);
//   const std::vector<Metric> rows = reports.end_step(mesh.all(), /*skipped=*/false);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/comm/group.h"
#include "colossal/models/model.h"

namespace colossal::train {

/// The reports of one model. If it declares no report, no call communicates and nothing is on the device.
class StepReports {
 public:
  /// `model` must outlive the object. `name`: of the model; rows of a model with a name begin with it and a dot.
  StepReports(const models::Model& model, at::Device device, const std::string& name = "");

  /// For nn::Step::reports of training passes; null if no report is declared.
  const std::shared_ptr<nn::ReportAccumulator>& accumulator() const { return accumulator_; }
  /// Forgets the values of all passes.
  void begin_step();
  /// Before the micro-batches of a pass. `loss_factor`: see nn::ReportAccumulator::begin().
  void begin_pass(double loss_factor);
  /// What this rank's passes since begin_pass() reported, on the device: one tensor, or none.
  std::vector<at::Tensor> numbers() const;
  /// `values`: those of numbers(). A step may have several passes; all their micro-batches count the same.
  void end_pass(std::span<const double> values, int64_t micro_batches);
  /// Joins the values of all ranks, calls Model::end_step, and returns the rows of the step: loss terms first. If the
  /// step has no pass, nothing happens.
  ///
  /// Communication: among `ranks`, all ranks of the model, all_reduces of 8 bytes per element on the host: one of all
  ///                sums, means and loss terms, and one of all maxima; without elements none.
  std::vector<Metric> end_step(comm::Group& ranks, bool skipped);
  /// The rows of loss terms without values, for checks of names.
  std::vector<Metric> loss_rows() const;

 private:
  std::vector<std::vector<double>> joined(comm::Group& ranks) const;

  std::vector<Metric> named(std::vector<Metric> rows) const;
  /// loss_rows() as the model knows them.
  std::vector<Metric> own_loss_rows() const;

  const models::Model& model_;
  std::string prefix_;  // of the names of rows
  std::shared_ptr<nn::ReportAccumulator> accumulator_;
  std::vector<double> sums_, maxima_;  // of this rank, over the passes of the step
  int64_t micro_batches_ = 0;          // of these passes
};

}  // namespace colossal::train
