#include "colossal/optim/adamw.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/ops/adamw.h"

namespace colossal::optim {

AdamW::AdamW(const OptimizerConfig& config, nn::FlatParameters& flat) : config_(config), flat_(flat) {
  require(config.betas.size() == 2, "optimizer", "adamw needs two betas: got ", config.betas.size());
  for (const nn::FlatBucket& bucket : flat.buckets())
    moments_.push_back({at::zeros_like(bucket.values), at::zeros_like(bucket.values)});
}

void AdamW::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ops::AdamWStep s{.learning_rate = learning_rate, .beta1 = config_.betas[0], .beta2 = config_.betas[1],
                   .epsilon = config_.epsilon, .step = step, .gradient_scale = gradient_scale};
  for (size_t b = 0; b < moments_.size(); ++b) {
    nn::FlatBucket& bucket = flat_.buckets()[b];
    // Neighbours of equal decay go through the kernel as one run.
    for (size_t i = 0, end; i < bucket.slots.size(); i = end) {
      const bool decay = bucket.slots[i].parameter->decay;
      for (end = i + 1; end < bucket.slots.size() && bucket.slots[end].parameter->decay == decay;) ++end;
      const int64_t first = bucket.slots[i].offset, last = bucket.slots[end - 1].offset + bucket.slots[end - 1].size;
      auto run = [&](const at::Tensor& flat) { return flat.narrow(0, first, last - first); };
      at::Tensor values = run(bucket.values), m = run(moments_[b].first), v = run(moments_[b].second);
      s.weight_decay = decay ? config_.weight_decay : 0;
      ops::adamw_(values, run(bucket.gradients), m, v, s);
    }
  }
}

std::vector<StateTensor> AdamW::state() {
  std::vector<StateTensor> tensors;
  for (size_t b = 0; b < moments_.size(); ++b) {
    for (const nn::FlatSlot& slot : flat_.buckets()[b].slots) {
      tensors.push_back({"exp_avg." + slot.parameter->name, nn::view_of_slot(moments_[b].first, slot), slot.parameter});
      tensors.push_back({"exp_avg_sq." + slot.parameter->name, nn::view_of_slot(moments_[b].second, slot), slot.parameter});
    }
  }
  return tensors;
}

}  // namespace colossal::optim
