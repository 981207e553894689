#include "colossal/train/captured_pass.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "colossal/tensor/flops.h"
#include "colossal/tensor/graph.h"

namespace colossal::train {
namespace {

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

}  // namespace

CapturedPass::CapturedPass(at::Device device, Body body) : device_(device), body_(std::move(body)) {}

CapturedPass::~CapturedPass() = default;

bool CapturedPass::fits(const data::Batch& b) const {
  return !held_.inputs.defined() || (are_alike(b.inputs, held_.inputs) && are_alike(b.labels, held_.labels) &&
                                     are_alike(b.positions, held_.positions));
}

at::Tensor CapturedPass::run(const data::Batch& b, double factor) {
  const bool is_first = !held_.inputs.defined();
  {
    const at::NoGradGuard no_grad;
    const auto hold = [&](at::Tensor& held, const at::Tensor& given) {
      if (is_first && given.defined()) held = at::empty(given.sizes(), given.options());
      if (given.defined()) held.copy_(given);
    };
    hold(held_.inputs, b.inputs), hold(held_.labels, b.labels), hold(held_.positions, b.positions);
    if (is_first) factor_ = at::empty({}, at::TensorOptions().dtype(at::kDouble).device(device_));
    factor_.fill_(factor);
  }
  if (is_first) return body_(held_, factor_);
  if (graph_) {
    tensor::announce_flops(flops_);
  } else {
    const tensor::FlopCount count;  // those around hear of them as well
    graph_ = tensor::capture(device_, [&] { result_ = body_(held_, factor_); });
    flops_ = count.total();
  }
  graph_->replay();
  return result_.clone();
}

}  // namespace colossal::train
