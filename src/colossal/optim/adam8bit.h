// AdamW with moments in 8 bits (Dettmers et al., arXiv:2110.02861) over shards.
#pragma once
#include "colossal/ops/adam_8bit.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// The step of AdamW on moments that are decoded for it and encoded again in the same pass, in blocks of 256 elements
/// of a piece: two bytes an element and 8 for each block. No communication.
///
/// State: fp32 moments, which a checkpoint shares out like any others. Where the pieces are those that saved them they
///        give the same codes again, bit for bit; elsewhere they are rounded in other blocks.
class Adam8bit : public Optimizer {
 public:
  /// Errors ("optimizer"): shards on a device without kernels of ours (ops::has_block_codes).
  Adam8bit(const OptimizerConfig& config, std::vector<memory::Shard>& shards);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  std::vector<StateTensor> state() override;
  /// Where there are kernels.
  bool takes_shards_on(at::Device device) const override { return ops::has_block_codes(device); }

 private:
  struct Moments {
    ops::CodedState first, second;
  };
  /// Returns the moments of piece number `piece` of a shard.
  Moments moments(const memory::Resident& shard, size_t piece) const;
  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  size_t first_ = 0;  ///< place of the first piece's moments among the states of every shard: four tensors a piece
};

}  // namespace colossal::optim
