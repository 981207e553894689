#include "colossal/train/captured_pass.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "colossal/tensor/flops.h"
#include "colossal/tensor/graph.h"

namespace colossal::train {
namespace {

/// Returns the fields on the device, which a graph can read.
tensor::Batch recordable(const tensor::Batch& batch) {
  tensor::Batch fields;
  for (const auto& [name, field] : batch.fields())
    if (!field.stays_whole) fields.add(name, field);
  return fields;
}

bool are_alike(const tensor::Batch& a, const tensor::Batch& b) {
  return std::equal(a.fields().begin(), a.fields().end(), b.fields().begin(), b.fields().end(),
                    [](const tensor::Batch::Named& x, const tensor::Batch::Named& y) {
                      const at::Tensor &t = x.field.tensor, &u = y.field.tensor;
                      return x.name == y.name && t.sizes() == u.sizes() && t.scalar_type() == u.scalar_type();
                    });
}

}  // namespace

CapturedPass::CapturedPass(at::Device device, Body body) : device_(device), body_(std::move(body)) {}

CapturedPass::~CapturedPass() = default;

bool CapturedPass::fits(const tensor::Batch& b) const {
  return held_.fields().empty() || are_alike(held_, recordable(b));
}

at::Tensor CapturedPass::run(const tensor::Batch& b, double factor) {
  const bool is_first = held_.fields().empty();
  {
    const at::NoGradGuard no_grad;
    if (is_first) {
      held_ = recordable(b).map([](const tensor::Field& f) { return at::empty(f.tensor.sizes(), f.tensor.options()); });
      factor_ = at::empty({}, at::TensorOptions().dtype(at::kDouble).device(device_));
    }
    for (const auto& [name, field] : held_.fields()) field.tensor.copy_(b.at(name));
    factor_.fill_(factor);
  }
  if (is_first) return body_(held_, factor_);
  if (graph_) {
    tensor::announce_flops(flops_);
  } else {
    const tensor::FlopCount count;  // outer listeners receive these operations too
    graph_ = tensor::capture(device_, [&] { result_ = body_(held_, factor_); });
    flops_ = count.total();
  }
  graph_->replay();
  return result_.clone();
}

}  // namespace colossal::train
