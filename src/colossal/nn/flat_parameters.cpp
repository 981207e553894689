#include "colossal/nn/flat_parameters.h"

#include <ATen/ATen.h>

#include <map>

#include "colossal/ops/reduce.h"

namespace colossal::nn {
namespace {

/// FlatBucket::gradient_axes and copies.
using Ranks = std::pair<std::vector<std::string>, std::vector<int>>;

Ranks ranks_of(const tensor::ShardSpec& spec) { return {spec.gradient_axes, spec.stages.size() > 1 ? spec.stages : std::vector<int>{}}; }

FlatBucket pack(std::vector<FlatSlot> slots, int64_t length, const at::TensorOptions& options) {
  const auto [axes, copies] = ranks_of(slots.front().parameter->spec);
  FlatBucket bucket{at::zeros({length}, options), at::zeros({length}, options), std::move(slots), axes, copies};
  for (const FlatSlot& slot : bucket.slots) {
    const at::Tensor home = view_of_slot(bucket.values, slot);
    home.copy_(slot.parameter->value.detach());
    slot.parameter->value.set_data(home);  // stays the same leaf, so modules and hooks keep their handle
    slot.parameter->value.mutable_grad() = view_of_slot(bucket.gradients, slot);
  }
  return bucket;
}

}  // namespace

at::Tensor view_of_slot(const at::Tensor& flat, const FlatSlot& slot) {
  return flat.narrow(0, slot.offset, slot.size).view(slot.parameter->value.sizes());
}

FlatParameters::FlatParameters(Parameters& parameters, int64_t bucket_bytes) {
  const auto options = at::TensorOptions().dtype(parameters.options().dtype).device(parameters.options().device);
  const int64_t element_bytes = static_cast<int64_t>(options.dtype().itemsize());
  std::vector<Parameter*> order;
  for (Parameter& p : parameters) order.insert(order.begin(), &p);
  struct Open {
    std::vector<FlatSlot> slots;
    int64_t length = 0;
  };
  std::map<Ranks, Open> open;
  auto close = [&](Open& o) {
    if (!o.slots.empty()) buckets_.push_back(pack(std::move(o.slots), o.length, options));
    o = {};
  };
  for (Parameter* p : order) {
    Open& o = open[ranks_of(p->spec)];
    if (o.length * element_bytes >= bucket_bytes) close(o);
    o.slots.push_back({p, o.length, p->value.numel()});
    o.length += p->value.numel();
  }
  for (auto& [ranks, rest] : open) close(rest);
}

void FlatParameters::zero_gradients() {
  for (FlatBucket& bucket : buckets_) ops::zero_(bucket.gradients);
}

}  // namespace colossal::nn
