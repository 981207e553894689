// The common base of rules that need values of whole tensors.
#pragma once
#include "colossal/ops/updates/adam_step.h"
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

  /// Calls body(lease of the shard, part) for the parts of all pieces. Values may be written, and directions may be
  /// read.
  template <class Body>
  void for_parts(const Body& body) const {
    memory::for_leases(shards_, {.values = Access::Write, .directions = Access::Read},
                       [&](size_t, memory::Resident& shard) {
                         for (const memory::Piece& piece : shard.pieces)
                           for (const LogicalTensors::Part& part : tensors_.parts(piece)) body(shard, part);
                       });
  }

  /// Ends the step of a rule that handles only some tensors. Adam updates the pieces for which `others` has both
  /// moments, each with its own rate and decay. The other pieces descend along the directions of the shard, whose
  /// number is `index`. The lease must include kUpdate and the directions.
  void adam_or_descend(const PieceStates& others, ops::AdamStep adam, double gradient_scale, size_t index,
                       memory::Resident& shard, const Descent& descent) const;

  /// A part of a logical tensor in one of this rank's shards.
  struct HeldPart {
    size_t shard;
    memory::Piece piece;
  };
  /// Returns for each tensor the parts that this rank's shards hold, ordered by shard.
  std::vector<std::vector<HeldPart>> held_parts() const;
  /// Returns the numbers of the shards of `parts`, ascending.
  static std::vector<size_t> shards_of(const std::vector<HeldPart>& parts);

 private:
  /// Appends the tensors that state() returns.
  virtual void add_to(std::vector<StateTensor>& state) const = 0;

  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  LogicalTensors tensors_;
};

}  // namespace colossal::optim
