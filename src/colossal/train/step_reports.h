// Step reports (nn/reports.h): combines the values that the layers of each rank report into values of all ranks.
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
#include "colossal/nn/reports.h"

namespace colossal::train {

/// The reports of one model. If the model declares no report, no call communicates, and the object uses no memory on
/// the device.
class StepReports {
 public:
  /// `model` must outlive the object. `name` is the name of the model. If it is not empty, row names start with it and
  /// a dot.
  StepReports(const models::Model& model, at::Device device, const std::string& name = "");

  /// Returns the accumulator for nn::ForwardContext::reports of training passes; null if no report is declared.
  const std::shared_ptr<nn::ReportAccumulator>& accumulator() const { return accumulator_; }
  /// Clears the values of all passes.
  void begin_step();
  /// Starts a pass; must be called before its micro-batches. `loss_factor`: see nn::ReportAccumulator::begin().
  void begin_pass(double loss_factor);
  /// Returns the values that this rank's passes reported since begin_pass(), on the device: one tensor, or none.
  std::vector<at::Tensor> numbers() const;
  /// Ends a pass. `values` are the values of numbers(), which the caller has read from the device. A step may have
  /// several passes; all their micro-batches have equal weight.
  void end_pass(std::span<const double> values, int64_t micro_batches);
  /// Combines the values of all ranks, calls Model::end_step, and returns the rows of the step, loss terms first. Does
  /// nothing if the step has no pass. `skipped`: see nn::Reported.
  ///
  /// Communication: among `ranks`, all ranks of the model, on the host. One all_reduce of all sums, means and loss
  ///                terms, and one of all maxima: 8 bytes per element. An all_reduce without elements is left out.
  std::vector<Metric> end_step(comm::Group& ranks, bool skipped);
  /// Returns the rows of loss terms without values, so that their names can be checked.
  std::vector<Metric> loss_rows() const;

 private:
  std::vector<std::vector<double>> joined(comm::Group& ranks) const;

  std::vector<Metric> named(std::vector<Metric> rows) const;
  /// Returns loss_rows() with the model's own names.
  std::vector<Metric> own_loss_rows() const;

  const models::Model& model_;
  std::string prefix_;  // prefix of row names
  std::shared_ptr<nn::ReportAccumulator> accumulator_;
  std::vector<double> sums_, maxima_;  // values of this rank, over the passes of the step
  int64_t micro_batches_ = 0;          // micro-batches of these passes
};

}  // namespace colossal::train
