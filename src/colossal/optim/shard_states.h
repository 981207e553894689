// What rules keep beside the values of shards and reach through their leases, and the updates of elementwise rules.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/ops/update.h"
#include "colossal/optim/optimizer.h"

namespace colossal::optim {

using memory::Access;

/// For every shard and each kind ("exp_avg") a state like its values, at first zero. Part of a checkpoint under the
/// parameters' own specs.
class ShardStates {
 public:
  ShardStates(const std::vector<memory::Shard>& shards, std::vector<std::string> kinds);
  /// Elements [offset, offset + size) of each kind's tensor of a shard, in the order of the kinds.
  std::vector<at::Tensor> of(const memory::Resident& shard, int64_t offset, int64_t size) const;
  /// All of it.
  at::Tensor of(const memory::Resident& shard, size_t kind) const { return shard.states[first_ + kind]; }
  /// Where they are among the states of every shard.
  memory::Places places() const { return {first_, first_ + kinds_.size()}; }
  /// Piece after piece, kind after kind.
  void add_to(std::vector<StateTensor>& tensors, const std::vector<memory::Shard>& shards) const;

 private:
  std::vector<std::string> kinds_;
  size_t first_ = 0;  // place of the first kind among the states of every shard
};

/// States as in ShardStates, but only for pieces of the parameters that are `wanted`. Other pieces take no memory.
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
  std::vector<std::vector<int64_t>> places_;  // [shard][piece]: where it begins in each kind's state; -1: not wanted
};

/// What an update in one pass needs of a shard.
inline constexpr memory::Needs kUpdate{Access::Write, Access::Read, Access::Write};

/// What an elementwise rule updates in one pass: neighbouring pieces of one rate and decay, or one piece where values
/// are rounded by chance.
struct Run {
  ops::FlatUpdate update;
  int64_t offset, size;        ///< within the shard
  double rate;                 ///< factor of the learning rate
  double weight_decay;         ///< that of the config times the parameters' factor
  const nn::Parameter& first;  ///< of its parameters; its only one with `apart`
};

/// body(run) for all pieces of a shard. `apart`: a run for each piece. Random bits of config.stochastic_rounding depend
/// on step, name and the element's place in its local tensor: replicas round alike, however they share the states out.
void for_updates(const OptimizerConfig& config, const memory::Resident& shard, int64_t step, double gradient_scale,
                 bool apart, const std::function<void(const Run&)>& body);

/// The elements of `flat`, as long as the shard, that belong to a piece.
at::Tensor of_piece(const at::Tensor& flat, const memory::Piece& piece);

/// w -= rate (scale direction + weight_decay w) for a piece, the last pass of rules that take several: for fp32 12
/// bytes an element, and what the copy takes, which is written too. `direction` is as long as the shard, of the values'
/// dtype; rate and weight_decay are multiplied by the parameter's factors.
struct Descent {
  double rate, weight_decay, scale = 1;
};
void descend(const memory::Resident& shard, const memory::Piece& piece, const at::Tensor& direction,
             const Descent& descent);

}  // namespace colossal::optim
