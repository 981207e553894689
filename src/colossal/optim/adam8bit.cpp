#include "colossal/optim/adam8bit.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/block_codes.h"
#include "colossal/optim/adam.h"

namespace colossal::optim {
namespace {

using ops::Codes;
using ops::kCodeBlock;

constexpr int64_t kWindow = 1024 * kCodeBlock;  // elements whose moments are decoded at a time

int64_t blocks(int64_t elements) { return (elements + kCodeBlock - 1) / kCodeBlock; }

}  // namespace

Adam8bit::Adam8bit(const OptimizerConfig& config, std::vector<memory::Shard>& shards) : config_(config), shards_(shards) {
  for (const memory::Shard& shard : shards) {
    require(shard.values.is_cpu(), "optimizer", "adam8bit keeps its moments on the CPU: got shards on ", shard.values.device(), "; use adamw");
    const int64_t n = shard.values.numel();
    const auto zero = [n](Codes kind) {
      Coded coded{at::empty({n}, at::kByte), at::zeros({blocks(n)})};
      ops::encode_blocks(at::zeros({n}), kind, coded.codes, coded.scales);
      return coded;
    };
    moments_.push_back({zero(Codes::Signed), zero(Codes::Positive)});
  }
}

void Adam8bit::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ops::AdamStep s = adam_step(config_, step, learning_rate);
  for (size_t i = 0; i < shards_.size(); ++i) {
    const int64_t n = shards_[i].values.numel();
    const auto type = shards_[i].values.scalar_type();
    for (int64_t first = 0; first < n; first += kWindow) {
      const int64_t size = std::min(kWindow, n - first);
      const auto part = [&](const Coded& coded) {
        return Coded{coded.codes.narrow(0, first, size), coded.scales.narrow(0, first / kCodeBlock, blocks(size))};
      };
      const Coded m = part(moments_[i].first), v = part(moments_[i].second);
      at::Tensor m_decoded = at::empty({size}), v_decoded = at::empty({size});
      ops::decode_blocks(m.codes, m.scales, Codes::Signed, m_decoded);
      ops::decode_blocks(v.codes, v.scales, Codes::Positive, v_decoded);
      const at::Tensor m_here = m_decoded.to(type), v_here = v_decoded.to(type);
      for_updates(config_, shards_[i], step, gradient_scale, false, [&](const Run& run) {
        const int64_t from = std::max(first, run.offset), to = std::min(first + size, run.offset + run.size);
        if (from >= to) return;
        const auto of_run = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, from - run.offset, to - from) : t; };
        s.weight_decay = run.weight_decay;
        ops::adam_({of_run(run.update.values), of_run(run.update.gradients), of_run(run.update.copy), gradient_scale},
                   m_here.narrow(0, from - first, to - from), v_here.narrow(0, from - first, to - from), s);
      });
      ops::encode_blocks(m_here.to(at::kFloat), Codes::Signed, m.codes, m.scales);
      ops::encode_blocks(v_here.to(at::kFloat), Codes::Positive, v.codes, v.scales);
    }
  }
}

std::vector<StateTensor> Adam8bit::state() {
  std::vector<StateTensor> tensors;
  for (size_t i = 0; i < shards_.size(); ++i) {
    at::Tensor m = at::empty({shards_[i].values.numel()}), v = at::empty_like(m);
    ops::decode_blocks(moments_[i].first.codes, moments_[i].first.scales, Codes::Signed, m);
    ops::decode_blocks(moments_[i].second.codes, moments_[i].second.scales, Codes::Positive, v);
    for (const memory::Piece& piece : shards_[i].pieces) {
      tensors.push_back(state_of_piece("exp_avg", m, piece));
      tensors.push_back(state_of_piece("exp_avg_sq", v, piece));
    }
  }
  return tensors;
}

void Adam8bit::loaded(const std::vector<StateTensor>& state) {
  size_t next = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    at::Tensor m = at::zeros({shards_[i].values.numel()}), v = at::zeros_like(m);
    for (const memory::Piece& piece : shards_[i].pieces) {
      of_piece(m, piece).copy_(state[next++].value);
      of_piece(v, piece).copy_(state[next++].value);
    }
    ops::encode_blocks(m, Codes::Signed, moments_[i].first.codes, moments_[i].first.scales);
    ops::encode_blocks(v, Codes::Positive, moments_[i].second.codes, moments_[i].second.scales);
  }
}

}  // namespace colossal::optim
