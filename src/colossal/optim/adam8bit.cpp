#include "colossal/optim/adam8bit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/base/error.h"
#include "colossal/optim/adam.h"

namespace colossal::optim {

using ops::Codes;

Adam8bit::Adam8bit(const OptimizerConfig& config, std::vector<memory::Shard>& shards)
    : config_(config), shards_(shards) {
  for (const memory::Shard& shard : shards) {
    require(shard.values.is_cpu(), "optimizer", "adam8bit keeps its moments on the CPU: got shards on ",
            shard.values.device(), "; use adamw");
    moments_.emplace_back();
    for (const memory::Piece& piece : shard.pieces)
      moments_.back().push_back(
          {ops::CodedState(piece.part.size, Codes::Signed), ops::CodedState(piece.part.size, Codes::Positive)});
  }
}

void Adam8bit::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ops::AdamStep s = adam_step(config_, step, learning_rate);
  for (size_t i = 0; i < shards_.size(); ++i) {
    size_t piece = 0;
    for_updates(config_, shards_[i], step, gradient_scale, true, [&](const Run& run) {
      const Moments& moments = moments_[i][piece++];
      s.learning_rate = learning_rate * run.rate;
      s.weight_decay = run.weight_decay;
      ops::adam_8bit_(run.update, moments.first, moments.second, s);
    });
  }
}

std::vector<StateTensor> Adam8bit::state() {
  std::vector<StateTensor> tensors;
  for (size_t i = 0; i < shards_.size(); ++i)
    for (size_t p = 0; p < shards_[i].pieces.size(); ++p) {
      const memory::Piece& piece = shards_[i].pieces[p];
      const nn::Parameter& parameter = *piece.parameter;
      at::Tensor m = at::empty({piece.part.size}), v = at::empty({piece.part.size});
      ops::decode_blocks(moments_[i][p].first.codes, moments_[i][p].first.scales, Codes::Signed, m);
      ops::decode_blocks(moments_[i][p].second.codes, moments_[i][p].second.scales, Codes::Positive, v);
      tensors.push_back({concat("exp_avg.", parameter.name), m, parameter.spec, piece.part});
      tensors.push_back({concat("exp_avg_sq.", parameter.name), v, parameter.spec, piece.part});
    }
  return tensors;
}

void Adam8bit::loaded(const std::vector<StateTensor>& state) {
  size_t next = 0;
  for (const std::vector<Moments>& of_shard : moments_)
    for (const Moments& moments : of_shard) {
      ops::encode_blocks(state[next++].value, Codes::Signed, moments.first.codes, moments.first.scales);
      ops::encode_blocks(state[next++].value, Codes::Positive, moments.second.codes, moments.second.scales);
    }
}

}  // namespace colossal::optim
