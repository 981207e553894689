#include "colossal/nn/reports.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns y, connected in backward with `loss`. `gradient` is the gradient of the loss. It is computed in forward,
/// because backward may run on another thread and must not read a value that the next step changes.
struct AttachedLoss : torch::autograd::Function<AttachedLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& /*loss*/,
                            const at::Tensor& gradient) {
    context->save_for_backward({gradient});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients[0], context->get_saved_variables()[0], at::Tensor()};
  }
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_declared(bool is_declared) {
  require(is_declared, "model",
          "a report must be declared when its layer is made: got an nn::Report that was not; keep the one that "
          "make.reports().add() or add_loss() returns");
}

}  // namespace

Reports::Reports(const tensor::MeshCoordinates& coordinates, const std::vector<std::string>& layout_axes) {
  std::vector<std::string> parts = coordinates.batch_axes();
  for (const std::string& axis : layout_axes)
    if (!contains(parts, axis)) parts.push_back(axis);
  ranks_ = coordinates.size(parts);
  is_first_part_ = coordinates.index(parts) == 0;
  // Along the pipeline ranks have other blocks, or other micro-batches for the same blocks, so all of them are joined.
  for (const tensor::MeshCoordinates::Axis& axis : coordinates.axes())
    if (axis.name != "pipeline" && !contains(parts, axis.name) && axis.index > 0) is_first_copy_ = false;
}

Report Reports::add(const ReportOptions& options) {
  require(options.size >= 1, "model", "a report must have one element or more: got size ", options.size, " of `",
          options.name, "`; give its number of elements");
  return declare({.name = options.name, .size = options.size, .over = options.over});
}

Report Reports::add_loss(const LossTermOptions& options) {
  require(std::isfinite(options.weight), "model", "the weight of a loss term must be finite: got ", options.weight,
          " of `", options.name, "`; give a number");
  require(options.over == Over::Mean || options.over == Over::Same, "model",
          "a loss term must be over Mean or Same: got ", options.over == Over::Sum ? "Sum" : "Max", " of `",
          options.name, "`; with Mean the layout does not change its strength");
  return declare({.name = options.name,
                  .over = options.over,
                  .is_loss = true,
                  .weight = options.weight,
                  .has_row = options.has_row});
}

Report Reports::declare(Declared declared) {
  require(!declared.name.empty(), "model", "a report must have a name: got none; give the path of its layer");
  for (const Declared& other : declared_)
    require(other.name != declared.name, "model", "the name of a report must be new: `", declared.name,
            "` is declared already; begin it with the name of its layer");
  int64_t& size = declared.over == Over::Max ? maxima_ : sums_;
  declared.first = size;
  size += declared.size;
  declared_.push_back(std::move(declared));
  return {static_cast<int64_t>(declared_.size()) - 1};
}

const Reports::Declared& Reports::at(const Report& report) const {
  check_declared(report.index >= 0 && report.index < static_cast<int64_t>(declared_.size()));
  return declared_[static_cast<size_t>(report.index)];
}

ReportAccumulator::ReportAccumulator(Reports reports, at::Device device) : reports_(std::move(reports)) {
  const auto options = at::TensorOptions().dtype(at::kDouble).device(device);
  sums_ = at::zeros({reports_.sums()}, options);
  maxima_ = at::zeros({reports_.maxima()}, options);
  loss_factor_ = at::zeros({}, options);
  begin(1);
}

void ReportAccumulator::begin(double loss_factor) {
  sums_.zero_();
  maxima_.fill_(-std::numeric_limits<double>::infinity());
  loss_factor_.fill_(loss_factor);
}

void ReportAccumulator::add(const Report& report, const at::Tensor& value) {
  const Reports::Declared& declared = reports_.at(report);
  require(value.numel() == declared.size, "model", "the report `", declared.name, "` must have the declared ",
          declared.size, " elements: got sizes ", value.sizes(), "; declare another size or report other values");
  const at::NoGradGuard no_grad;
  const at::Tensor own = value.detach().to(at::kDouble).reshape({-1});
  at::Tensor sum = (declared.over == Over::Max ? maxima_ : sums_).narrow(0, declared.first, declared.size);
  if (declared.over == Over::Max)
    sum.copy_(at::maximum(sum, own));
  else
    sum.add_(own);
}

at::Tensor ReportAccumulator::attach(const Report& term, const at::Tensor& loss, const at::Tensor& y) const {
  const Reports::Declared& declared = reports_.at(term);
  require(declared.is_loss, "model", "a loss term must be declared with add_loss(): got `", declared.name,
          "`, which is a value; declare it with add_loss(), or report it with step.report()");
  // The loss term must be fp32 or fp64: a scaled gradient overflows in fp16, and the scale would then follow the loss
  // term instead of the gradients.
  require(loss.numel() == 1 && (loss.scalar_type() == at::kFloat || loss.scalar_type() == at::kDouble), "model",
          "the loss term `", declared.name, "` must be one number in fp32 or fp64: got sizes ", loss.sizes(), " of ",
          c10::toString(loss.scalar_type()), "; add it up in fp32");
  if (!at::GradMode::is_enabled()) return y;
  const double ranks = declared.over == Over::Mean ? static_cast<double>(reports_.ranks()) : 1;
  const at::Tensor gradient = (loss_factor_ * (declared.weight / ranks)).to(loss.scalar_type()).reshape(loss.sizes());
  return AttachedLoss::apply(y, loss, gradient);
}

at::Tensor ReportAccumulator::values() const { return at::cat({sums_, maxima_}); }

const std::vector<double>& Reported::at(const Report& report) const {
  check_declared(report.index >= 0 && report.index < static_cast<int64_t>(values.size()));
  return values[static_cast<size_t>(report.index)];
}

ReportAccumulator* accumulator_of(const ForwardContext& step) {
  const ReportsOfStep* reports = step.parts.find<ReportsOfStep>();
  return reports ? reports->accumulator.get() : nullptr;
}

void ForwardContext::report(const Report& what, const at::Tensor& value) const {
  check_declared(what.index >= 0);
  ReportAccumulator* reports = accumulator_of(*this);
  if (reports && !is_recomputed) reports->add(what, value);
}

at::Tensor ForwardContext::attach_loss(const Report& term, const at::Tensor& loss, const at::Tensor& y) const {
  check_declared(term.index >= 0);
  ReportAccumulator* reports = accumulator_of(*this);
  if (!reports) return y;
  const at::Tensor attached = reports->attach(term, loss, y);
  if (!is_recomputed) reports->add(term, loss);
  return attached;
}

}  // namespace colossal::nn
