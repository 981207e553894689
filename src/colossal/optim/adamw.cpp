#include "colossal/optim/adamw.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/ops/adamw.h"

namespace colossal::optim {

AdamW::AdamW(const OptimizerConfig& config, std::vector<memory::Shard>& shards) : config_(config), shards_(shards) {
  require(config.betas.size() == 2, "optimizer", "adamw needs two betas: got ", config.betas.size());
  for (const memory::Shard& shard : shards) moments_.push_back({at::zeros_like(shard.values), at::zeros_like(shard.values)});
}

void AdamW::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ops::AdamWStep s{.learning_rate = learning_rate, .beta1 = config_.betas[0], .beta2 = config_.betas[1],
                   .epsilon = config_.epsilon, .step = step, .gradient_scale = gradient_scale};
  for (size_t i = 0; i < shards_.size(); ++i) {
    const memory::Shard& shard = shards_[i];
    memory::for_runs(shard, [](const nn::Parameter& p) { return p.decay; }, [&](bool decay, int64_t offset, int64_t size) {
      const auto run = [&](const at::Tensor& flat) { return flat.defined() ? flat.narrow(0, offset, size) : flat; };
      at::Tensor values = run(shard.values), m = run(moments_[i].first), v = run(moments_[i].second);
      s.weight_decay = decay ? config_.weight_decay : 0;
      ops::adamw_(values, run(shard.gradients), m, v, s, run(shard.copy));
    });
  }
}

std::vector<StateTensor> AdamW::state() {
  std::vector<StateTensor> tensors;
  for (size_t i = 0; i < shards_.size(); ++i)
    for (const memory::Piece& piece : shards_[i].pieces) {
      tensors.push_back(state_of_piece("exp_avg", moments_[i].first, piece));
      tensors.push_back(state_of_piece("exp_avg_sq", moments_[i].second, piece));
    }
  return tensors;
}

}  // namespace colossal::optim
