// Optimizers over shards of parameters.
//
//   const auto optimizer = optim::make_optimizer(config, store.shards(), {parameters, mesh});
//   optimizer->step(++step, rate, optim::clip_factor(norm, 1.0));   // gradients are in the shards
//   store.updated();
//   for (const optim::StateTensor& t : optimizer->state()) save(t.name, t.value.read(), t.spec, t.part);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"
#include "colossal/optim/config.h"
#include "colossal/optim/logical_tensors.h"
#include "colossal/tensor/stored.h"

namespace colossal::optim {

/// One tensor of an optimizer's state.
struct StateTensor {
  std::string name;        ///< "exp_avg.blocks.0.mlp.up.weight"
  tensor::Stored value;    ///< a shard's is brought when it is read or written
  tensor::ShardSpec spec;  ///< of what it belongs to: mostly the parameter's own
  /// `value` is 1-D and this part of a local tensor of `spec`; none: it is the local tensor
  std::optional<tensor::FlatPart> part;
};

/// The state of one piece under its parameter's spec: `value` has the piece's elements.
StateTensor state_of_piece(const std::string& kind, tensor::Stored value, const memory::Piece& piece);

/// An update rule over the shards of this rank, which outlive it. It walks their leases (memory::for_leases) and keeps
/// nothing of a shard between: what it needs of one from step to step are states of that shard. What it needs of whole
/// tensors (norms, means) it adds up over the mesh, so that a step is the same under every layout.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of all values, and of their copies, from their gradients times `gradient_scale`. `step` counts from 1.
  /// Collective among all ranks.
  virtual void step(int64_t step, double learning_rate, double gradient_scale) = 0;
  /// Whether step() sends anything: else it may fail on one rank, and the others do not wait for that one in it.
  virtual bool communicates() const { return false; }
  /// Everything that must be saved, beside the step, to be read or filled from a checkpoint: shard after shard, and
  /// nothing of them is brought before.
  virtual std::vector<StateTensor> state() = 0;
  /// What step() has leases of, for whoever gives it room: of anything that is not named here it has that of one shard
  /// at a time.
  struct Takes {
    bool directions = false;     ///< memory::Resident::directions
    size_t shards = 1;           ///< of several at one time, at most: of their gradients,
    bool of_directions = false;  ///< or of their directions
  };
  virtual Takes takes() const { return {}; }
  /// Whether shards may come to lie on `device`, some or all, whatever lent them when this was made: a rule that looks
  /// at each shard alone computes wherever that is. Others join what they know of all shards on one device.
  virtual bool takes_shards_on(at::Device device) const { return device.is_cpu(); }
};

/// `tensors`: the whole model's, of which `shards` hold parts of some; for rules that look at whole tensors. Nothing is
/// communicated.
/// Errors: those of check_optimizer; stochastic_rounding of values that are not bf16; what the rule refuses in
///         `shards`.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                          const LogicalTensors& tensors);

}  // namespace colossal::optim
