#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/account.h"
#include "colossal/nn/batch_step.h"
#include "colossal/optim/gradient_norm.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/host_value.h"
#include "colossal/train/engine.h"
#include "colossal/train/optimization.h"
#include "colossal/train/step_reports.h"

namespace colossal::train {

nn::ForwardContext Engine::training_step_of_row(const Member& member, const tensor::Batch& batch, int64_t row) const {
  nn::ForwardContext step = training_step_of(member, batch.part(row, 1), 0);
  const tensor::MeshCoordinates& here = mesh_->coordinates();
  step.first_row = replica_rows(batch.rows() * here.size(here.row_axes())).global(row);
  return step;
}

double Engine::train_rows(const tensor::Batch& batch, double weight, const Loss& loss, double limit) {
  require(std::isfinite(weight) && weight >= 0, "training",
          "the weight of a batch must be a finite number of 0 or more: got ", weight);
  require(limit > 0, "training", "the limit of the gradient of a row must be above 0: got ", limit);
  for (const char* axis : {"pipeline", "tensor", "expert"})
    require(mesh_->size(axis) == 1, "training", "the gradient of a row must be whole on each rank: got ",
            mesh_->size(axis), " ranks along \"", axis, "\"; use data parallelism, ZeRO and tiers, or training.clip");
  const tensor::MeantDevice meant(meant_);
  const memory::KindScope kind(memory::Kind::Activations);
  const comm::PhaseScope other(mesh_->world().traffic(), comm::Phase::Other);
  const Member& member = main();
  const tensor::Batch b = checked(member, batch);
  require(b.rows() > 0 && member.model->model().batch_parts == 1, "training",
          "a batch whose rows train one by one must have rows: got ", b.rows());
  release(member);
  comm::Group& others = mesh_->group(mesh_->coordinates().row_axes());
  const double sum = comm::sum(others, weight), whole = sum > 0 ? sum : 1, factor = optimization_->loss_scale() / whole;
  parallel::GradientReducer& reducer = optimization_->reducer();
  reducer.add_to_sums(member.name);
  reducer.begin_rows(member.name);
  StepReports& reports = *member.reports;
  reports.begin_pass(optimization_->loss_scale() / static_cast<double>(b.rows()));
  std::vector<at::Tensor> numbers;
  const auto scaled = [&](int, const models::States& end, const nn::ForwardContext& step) {
    const at::Tensor of_row = loss(member.model->model(), end, step);
    require(of_row.defined() && of_row.numel() == 1, "training", "the loss of a row must be one number: got ",
            of_row.defined() ? concat("a tensor ", of_row.sizes()) : "none");
    numbers.push_back(of_row.detach());
    return of_row * factor;
  };
  {
    const comm::PhaseScope backward(mesh_->world().traffic(), comm::Phase::Backward);
    for (int64_t row = 0; row < b.rows(); ++row) {
      reducer.begin_row(member.name);
      member.model->train_one(training_step_of_row(member, b, row), scaled);
      const double norm = std::sqrt(tensor::host_value(reducer.row_squares())) / factor;
      reducer.keep_row(optim::clip_factor(norm, limit));
    }
    reducer.finish_rows();
    reducer.finish();
  }
  optimization_->close_pass();
  const size_t losses = numbers.size();
  for (at::Tensor& reported : reports.numbers()) numbers.push_back(std::move(reported));
  const std::vector<double> values = optimization_->read_before_step(numbers);
  reports.end_pass(std::span(values).subspan(losses), b.rows());
  double mean = 0;
  for (size_t i = 0; i < losses; ++i) mean += values[i] / whole;
  ++passes_;
  return comm::sum(others, mean);
}

}  // namespace colossal::train
