// What rules have in common that look at whole tensors.
#pragma once
#include "colossal/ops/adam_step.h"
#include "colossal/optim/logical_tensors.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// A rule that needs norms, means or products of logical tensors.
class TensorwiseOptimizer : public Optimizer {
 public:
  bool communicates() const final { return true; }
  std::vector<StateTensor> state() final {
    std::vector<StateTensor> all;
    add_to(all);
    return all;
  }

 protected:
  TensorwiseOptimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
      : config_(config), shards_(shards), tensors_(logical) {}
  const OptimizerConfig& config() const { return config_; }
  const std::vector<memory::Shard>& shards() const { return shards_; }
  const LogicalTensors& tensors() const { return tensors_; }

  /// body(lease of the shard, piece, number of its tensor) for all pieces, whose values are written and whose
  /// directions are read.
  template <class Body>
  void for_pieces(const Body& body) const {
    memory::for_leases(shards_, {.values = Access::Write, .directions = Access::Read},
                       [&](size_t, memory::Resident& shard) {
                         for (const memory::Piece& piece : shard.pieces)
                           body(shard, piece, tensors_.index(*piece.parameter));
                       });
  }

  /// The end of a step of rules for some tensors alone: pieces that `others` has both moments of are stepped by Adam,
  /// each at its own rate and decay, all others go down the directions of the shard, number `index`. Needs kUpdate and
  /// these.
  void adam_or_descend(const PieceStates& others, ops::AdamStep adam, double gradient_scale, size_t index,
                       memory::Resident& shard, const Descent& descent) const;

  /// For each tensor the numbers of the shards of this rank that have parts of it, ascending.
  std::vector<std::vector<size_t>> shards_of_tensors() const {
    std::vector<std::vector<size_t>> holders(tensors_.entries().size());
    for (size_t i = 0; i < shards_.size(); ++i)
      for (const memory::Piece& piece : shards_[i].pieces()) holders[tensors_.index(*piece.parameter)].push_back(i);
    return holders;
  }

 private:
  /// What state() returns.
  virtual void add_to(std::vector<StateTensor>& state) const = 0;

  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  LogicalTensors tensors_;
};

}  // namespace colossal::optim
