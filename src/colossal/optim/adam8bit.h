// AdamW with moments in 8 bits (Dettmers et al., arXiv:2110.02861) over shards.
#pragma once
#include "colossal/ops/updates/adam_8bit.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// AdamW with quantized moments, which one pass decodes, updates and encodes again, in blocks of 256 elements of a
/// piece. Memory: two bytes per element and 8 bytes per block. No communication.
///
/// State: moments in fp32, which a checkpoint shards like other states. If the pieces are those that saved them,
///        loading gives bitwise the same quantized values. Otherwise the moments are rounded in other blocks.
class Adam8bit : public Optimizer {
 public:
  /// Errors ("optimizer"): shards on a device for which this build has no kernels (ops::has_block_codes).
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

}  // namespace colossal::optim
