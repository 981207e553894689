#include "colossal/optim/adam8bit.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/optim/adam.h"

namespace colossal::optim {

using ops::Codes;

Adam8bit::Adam8bit(const OptimizerConfig& config, std::vector<memory::Shard>& shards)
    : config_(config), shards_(shards) {
  for (const memory::Shard& shard : shards) {
    require(shard.options().device().is_cpu(), "optimizer", "adam8bit keeps its moments on the CPU: got shards on ",
            shard.options().device(), "; use adamw");
    bool is_first = true;
    for (const memory::Piece& piece : shard.pieces())
      for (const Codes kind : {Codes::Signed, Codes::Positive}) {
        const ops::CodedState zeros(piece.part.size, kind);
        const size_t place = shard.add_state(zeros.codes);
        shard.add_state(zeros.scales);
        if (std::exchange(is_first, false)) first_ = place;
      }
  }
}

Adam8bit::Moments Adam8bit::moments(const memory::Resident& shard, size_t piece) const {
  const at::Tensor* states = &shard.states[first_ + 4 * piece];
  return {{states[0], states[1]}, {states[2], states[3]}};
}

void Adam8bit::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  ops::AdamStep s = adam_step(config_, step, learning_rate);
  memory::for_leases(shards_, kUpdate, [&](size_t, memory::Resident& shard) {
    size_t piece = 0;
    for_updates(config_, shard, step, gradient_scale, true, [&](const Run& run) {
      const Moments of_piece = moments(shard, piece++);
      s.learning_rate = learning_rate * run.rate;
      s.weight_decay = run.weight_decay;
      ops::adam_8bit_(run.update, of_piece.first, of_piece.second, s);
    });
  });
}

std::vector<StateTensor> Adam8bit::state() {
  std::vector<StateTensor> tensors;
  memory::for_leases(shards_, {.states = Access::Read}, [&](size_t, memory::Resident& shard) {
    for (size_t p = 0; p < shard.pieces.size(); ++p) {
      const memory::Piece& piece = shard.pieces[p];
      const Moments coded = moments(shard, p);
      at::Tensor m = at::empty({piece.part.size}), v = at::empty({piece.part.size});
      ops::decode_blocks(coded.first.codes, coded.first.scales, Codes::Signed, m);
      ops::decode_blocks(coded.second.codes, coded.second.scales, Codes::Positive, v);
      tensors.push_back(state_of_piece("exp_avg", m, piece, {}));
      tensors.push_back(state_of_piece("exp_avg_sq", v, piece, {}));
    }
  });
  return tensors;
}

void Adam8bit::loaded(const std::vector<StateTensor>& state) {
  size_t next = 0;
  memory::for_leases(shards_, {.states = Access::Write}, [&](size_t, memory::Resident& shard) {
    for (size_t p = 0; p < shard.pieces.size(); ++p) {
      const Moments coded = moments(shard, p);
      ops::encode_blocks(state[next++].value, Codes::Signed, coded.first.codes, coded.first.scales);
      ops::encode_blocks(state[next++].value, Codes::Positive, coded.second.codes, coded.second.scales);
    }
  });
}

}  // namespace colossal::optim
