#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/ops/updates/adam_8bit.h"
#include "colossal/optim/rules.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

using ops::Codes;

namespace {

/// A decoded moment of one piece. If `writes`, written values are encoded again when the lease ends.
struct Decoded {
  Decoded(const memory::Shard& shard, size_t place, Codes kind, bool writes)
      : kind(kind),
        writes(writes),
        lease(shard.lease(
            {.states = writes ? Access::Write : Access::Read, .places = {.first = place, .end = place + 2}})),
        coded{lease->states[place], lease->states[place + 1]},
        values(at::empty({coded.codes.numel()}, coded.scales.options())) {
    ops::decode_blocks(coded.codes, coded.scales, kind, values);
  }
  ~Decoded() {
    if (writes) ops::encode_blocks(values, kind, coded.codes, coded.scales);
  }
  Decoded(const Decoded&) = delete;
  Decoded& operator=(const Decoded&) = delete;

  Codes kind;
  bool writes;
  memory::Lease lease;
  struct {
    at::Tensor codes, scales;
  } coded;
  at::Tensor values;
};

class Adam8bit : public Optimizer {
 public:
  Adam8bit(const OptimizerConfig& config, std::vector<memory::Shard>& shards);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  std::vector<StateTensor> state() override;
  /// Returns true for devices that have kernels.
  bool takes_shards_on(at::Device device) const override { return ops::has_block_codes(device); }

 private:
  struct Moments {
    ops::CodedState first, second;
  };
  /// Returns the moments of piece number `piece` of a shard.
  Moments moments(const memory::Resident& shard, size_t piece) const;
  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  size_t first_ = 0;  ///< place of the first piece's moments among the states of every shard: four tensors per piece
};

Adam8bit::Adam8bit(const OptimizerConfig& config, std::vector<memory::Shard>& shards)
    : config_(config), shards_(shards) {
  for (const memory::Shard& shard : shards) {
    const at::Device device = shard.options().device();
    require(ops::has_block_codes(device), "optimizer", "adam8bit has no kernels for ", device,
            " in this build: it needs nvcc and a LibTorch with CUDA; use adamw");
    bool is_first = true;
    for (const memory::Piece& piece : shard.pieces())
      for (const Codes kind : {Codes::Signed, Codes::Positive}) {
        const ops::CodedState zeros(piece.part.size, kind, device);
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
  for (const memory::Shard& shard : shards_)
    for (size_t p = 0; p < shard.pieces().size(); ++p) {
      const memory::Piece& piece = shard.pieces()[p];
      const auto moment = [&](size_t place, Codes kind) {
        return tensor::Stored(
            at::kFloat, {piece.part.size},
            [=](bool writes) {
              auto decoded = std::make_shared<Decoded>(shard, place, kind, writes);
              return tensor::Held{decoded->values, decoded};
            },
            shard.identity());
      };
      tensors.push_back(state_of_piece("exp_avg", moment(first_ + 4 * p, Codes::Signed), piece));
      tensors.push_back(state_of_piece("exp_avg_sq", moment(first_ + 4 * p + 2, Codes::Positive), piece));
    }
  return tensors;
}

}  // namespace

std::unique_ptr<Optimizer> make_adam8bit(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                         const LogicalTensors&) {
  return std::make_unique<Adam8bit>(config, shards);
}

}  // namespace colossal::optim
