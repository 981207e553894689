// States of shards, which update rules reach through leases, and the updates of elementwise rules.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/ops/updates/update.h"
#include "colossal/optim/optimizer.h"

namespace colossal::optim {

using memory::Access;

/// Returns a handle to elements [offset, offset + size) of the state of a shard at `place`, whose dtype is `dtype`.
tensor::Stored stored_state(const memory::Shard& shard, size_t place, at::ScalarType dtype, int64_t offset,
                            int64_t size);

/// One state per shard and kind ("exp_avg"), of the size of the shard's values, initially zero. Checkpoints save them
/// under the parameters' own specs.
class ShardStates {
 public:
  ShardStates(const std::vector<memory::Shard>& shards, std::vector<std::string> kinds);
  /// Returns elements [offset, offset + size) of the state of each kind of a shard, in the order of the kinds.
  std::vector<at::Tensor> of(const memory::Resident& shard, int64_t offset, int64_t size) const;
  /// Returns the whole state of one kind.
  at::Tensor of(const memory::Resident& shard, size_t kind) const { return shard.states[first_ + kind]; }
  /// Returns the places of these states among the states of every shard.
  memory::Places places() const { return {first_, first_ + kinds_.size()}; }
  /// Appends the states to `tensors`, ordered by piece, then by kind.
  void add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const;

 private:
  std::vector<std::string> kinds_;
  size_t first_ = 0;  // place of the first kind among the states of every shard
};

/// States as in ShardStates, but only for the pieces whose parameters are `wanted`. Other pieces take no memory.
class PieceStates {
 public:
  PieceStates(const std::vector<memory::Shard>& shards, std::vector<std::string> kinds,
              const std::function<bool(const nn::Parameter&)>& wanted);
  /// Returns the states of piece number `piece` of shard number `index`, in the order of the kinds; empty if the piece
  /// is not wanted.
  std::vector<at::Tensor> of(size_t index, const memory::Resident& shard, size_t piece) const;
  memory::Places places() const { return {first_, first_ + kinds_.size()}; }
  void add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const;

 private:
  std::vector<std::string> kinds_;
  size_t first_ = 0;                          // place of the first kind among the states of every shard
  std::vector<std::vector<int64_t>> places_;  // [shard][piece]: offset in each kind's state; -1 = not wanted
};

/// The accesses to a shard that an update in one pass needs.
inline constexpr memory::Needs kUpdate{Access::Write, Access::Read, Access::Write};

/// The elements that an elementwise rule updates in one call: adjacent pieces with the same rate and decay, or one
/// piece with stochastic rounding.
struct Run {
  ops::FlatUpdate update;
  int64_t offset, size;        ///< within the shard
  double rate;                 ///< factor of the learning rate
  double weight_decay;         ///< weight decay of the config times the factor of the parameters
  const nn::Parameter& first;  ///< first of its parameters; the only one with `apart`
};

/// Returns the run of one piece of a shard, or of a part of a piece. The random bits of config.stochastic_rounding
/// depend on the step, the parameter's name and the element's index in its local tensor. So replicas round identically,
/// however they shard the states.
Run run_of(const OptimizerConfig& config, const memory::Resident& shard, const memory::Piece& piece, int64_t step,
           double gradient_scale);

/// Calls body(run) for all pieces of a shard. If `apart`, each piece is a run of its own, as run_of() returns it.
void for_updates(const OptimizerConfig& config, const memory::Resident& shard, int64_t step, double gradient_scale,
                 bool apart, const std::function<void(const Run&)>& body);

/// Returns the elements of `flat` that belong to a piece. `flat` is as long as the shard.
at::Tensor of_piece(const at::Tensor& flat, const memory::Piece& piece);

/// Parameters of descend(): w -= rate (scale direction + weight_decay w) for a piece. It is the last pass of rules with
/// several passes. Cost: 12 bytes per element for fp32, plus the copy, which is written too. `direction` is as long as
/// the shard and has the values' dtype. rate and weight_decay are multiplied by the parameter's factors.
struct Descent {
  double rate, weight_decay, scale = 1;
};
void descend(const memory::Resident& shard, const memory::Piece& piece, const at::Tensor& direction,
             const Descent& descent);

}  // namespace colossal::optim
