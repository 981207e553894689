#include "colossal/parallel/tensor/modulation.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/comm/collectives.h"
#include "colossal/tensor/shard_spec.h"

namespace colossal::parallel {
namespace {

using AxisNames = std::vector<std::string>;

/// Returns the names of `axes` that are not in `others`.
AxisNames without(const AxisNames& axes, const AxisNames& others) {
  AxisNames left;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(left),
               [&](const std::string& axis) { return std::find(others.begin(), others.end(), axis) == others.end(); });
  return left;
}

}  // namespace

TensorModulation::TensorModulation(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                                   int64_t hidden, int64_t count)
    : layout_(std::move(layout)),
      count_(count),
      outputs_(count * hidden),
      splits_features_(!layout_->outside.columns.empty()),
      splits_tokens_(without(layout_->expand.weight.out, layout_->outside.sequence).empty()),
      rows_(layout_->mesh->group(splits_features_ ? AxisNames() : layout_->expand.weight.out)),
      features_(layout_->mesh->group(layout_->outside.columns)),
      other_rows_(layout_->mesh->group(without(layout_->outside.batch, layout_->inside.batch))) {
  const nn::LinearOptions zeros{.deviation = 0};
  const auto segments = std::vector<tensor::Segment>(count, tensor::Segment{hidden});
  linear_ = splits_features_ ? TensorLinear::contract(p, layout_, name, hidden, outputs_, zeros, segments)
                             : TensorLinear::alone(p, layout_, name, hidden, outputs_, zeros);
}

std::vector<at::Tensor> TensorModulation::forward(const at::Tensor& condition) {
  const at::Tensor x = at::silu(condition);
  return nn::modulation_vectors(splits_features_ ? linear_->forward(inside_part(x)) : with_whole_features(x), count_);
}

at::Tensor TensorModulation::with_whole_features(const at::Tensor& x) const {
  // Where the ranks have the same tokens, they compute the same gradients of the vectors, and each needs the whole
  // gradient of x. Where they have other tokens, both are partial sums.
  const at::Tensor y = splits_tokens_ ? comm::all_gather(linear_->forward(x), -1, rows_)
                                      : comm::gather_from(linear_->forward(comm::copy_to(x, rows_)), -1, rows_);
  return y.narrow(-1, 0, outputs_);
}

at::Tensor TensorModulation::inside_part(const at::Tensor& x) const {
  const Split &outside = layout_->outside, &inside = layout_->inside;
  if (outside.columns == inside.columns) return x;
  const tensor::MeshCoordinates& coordinates = layout_->mesh->coordinates();
  const at::Tensor whole = comm::all_gather(comm::all_gather(x, -1, features_), 0, other_rows_);
  const AxisNames rows = without(inside.batch, outside.batch);
  const int64_t count = whole.size(0) / coordinates.size(rows),
                width = whole.size(1) / coordinates.size(inside.columns);
  return whole.narrow(0, coordinates.index(rows) * count, count)
      .narrow(1, coordinates.index(inside.columns) * width, width);
}

}  // namespace colossal::parallel
