#include "colossal/optim/gradient_norm.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/ops/reduce.h"

namespace colossal::optim {
namespace {

/// Place of this rank's twin among the first data replicas: gradients are equal along the data axis, so each replica counts alone.
tensor::Place within_replica(const tensor::Place& place) {
  std::vector<tensor::Place::Axis> axes = place.axes();
  for (auto& axis : axes)
    if (axis.name == "data") axis.index = 0;
  return tensor::Place(axes);
}

double squared_norm(const at::Tensor& gradient, const nn::Parameter& parameter, const tensor::Place& place) {
  const auto blocks = parameter.spec.blocks(place);
  bool all_primary = true;
  for (const auto& block : blocks) all_primary = all_primary && block.primary;
  if (all_primary) return ops::sum_of_squares(gradient.view({-1})).item<double>();  // padding is zero: no need to cut it out
  double sum = 0;
  for (const auto& block : blocks) {
    if (!block.primary) continue;
    at::Tensor box = gradient;
    for (size_t d = 0; d < block.size.size(); ++d) box = box.narrow(d, block.local_start[d], block.size[d]);
    sum += ops::sum_of_squares(box.contiguous().view({-1})).item<double>();
  }
  return sum;
}

}  // namespace

double gradient_norm(const nn::FlatParameters& flat, comm::Mesh& mesh) {
  const tensor::Place place = within_replica(mesh.place());
  double sum = 0;
  for (const nn::FlatBucket& bucket : flat.buckets())
    for (const nn::FlatSlot& slot : bucket.slots)
      sum += squared_norm(nn::view_of_slot(bucket.gradients, slot), *slot.parameter, place);
  at::Tensor total = at::full({1}, sum, at::kDouble);
  mesh.all_but("data").all_reduce(total, comm::Reduce::Sum).wait();
  return std::sqrt(total.item<double>());
}

}  // namespace colossal::optim
