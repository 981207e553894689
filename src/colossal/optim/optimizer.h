// Optimizers over shards of parameters.
//
//   const auto optimizer = optim::make_optimizer(config, store.shards(), {parameters, mesh});
//   optimizer->step(++step, rate, optim::clip_factor(norm, 1.0));   // gradients are in the shards
//   store.updated();
//   for (const optim::StateTensor& t : optimizer->state()) save(t.name, t.value, t.spec, t.part);
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

namespace colossal::optim {

/// One tensor of an optimizer's state.
struct StateTensor {
  std::string name;        ///< "exp_avg.blocks.0.mlp.up.weight"
  at::Tensor value;        ///< valid while `lease` lives
  tensor::ShardSpec spec;  ///< of what it belongs to: mostly the parameter's own
  /// `value` is 1-D and this part of a local tensor of `spec`; none: it is the local tensor
  std::optional<tensor::FlatPart> part;
  memory::Lease lease{};  ///< of the shard that `value` is a state of; null: the rule's own tensor
};

/// The state of one piece under its parameter's spec: `value` has the piece's elements.
StateTensor state_of_piece(const std::string& kind, const at::Tensor& value, const memory::Piece& piece,
                           memory::Lease lease);

/// An update rule over the shards of this rank, which outlive it. It walks their leases (memory::for_leases) and keeps
/// nothing of a shard between: what it needs of one from step to step are states of that shard. What it needs of whole
/// tensors (norms, means) it adds up over the mesh, so that a step is the same under every layout.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of all values, and of their copies, from their gradients times `gradient_scale`. `step` counts from 1.
  /// Collective among all ranks.
  virtual void step(int64_t step, double learning_rate, double gradient_scale) = 0;
  /// Everything that must be saved, beside the step. Holds leases of all shards that it is of.
  virtual std::vector<StateTensor> state() = 0;
  /// Called when `state`, which state() returned, has been filled from a checkpoint: rules that keep their state in
  /// another form take it back.
  virtual void loaded(const std::vector<StateTensor>& /*state*/) {}
};

/// `tensors`: the whole model's, of which `shards` hold parts of some; for rules that look at whole tensors. Nothing is
/// communicated.
/// Errors: those of check_optimizer; stochastic_rounding of values that are not bf16; what the rule refuses in
///         `shards`.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                          const LogicalTensors& tensors);

}  // namespace colossal::optim
