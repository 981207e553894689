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
  std::string name;        ///< such as "exp_avg.blocks.0.mlp.up.weight"
  tensor::Stored value;    ///< a state of a shard is loaded when it is read or written
  tensor::ShardSpec spec;  ///< sharding of the tensor to which the state belongs, usually the parameter's own spec
  /// Absent: `value` is the local tensor of `spec`. Present: `value` is 1-D and holds this part of the local tensor
  std::optional<tensor::FlatPart> part;
  nn::RowRange rows{};  ///< rows of dimension 0 that have the state: those that train (nn::Treatment::rows)
};

/// Returns the state of one piece, under the spec and with the trained rows of the piece's parameter: `value` has the
/// piece's elements.
StateTensor state_of_piece(const std::string& kind, tensor::Stored value, const memory::Piece& piece);

/// An update rule over the shards of this rank, which must outlive it. It visits the leases of the shards
/// (memory::for_leases) and holds no reference to a shard between steps. Values that a rule keeps of a shard from step
/// to step are states of that shard. Values that it needs of whole tensors (norms, means) are summed over the mesh, so
/// a step gives the same result under every layout.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Updates all values, and their copies in the model's dtype, once: from the gradients times `gradient_scale`. `step`
  /// counts from 1. Collective among all ranks.
  virtual void step(int64_t step, double learning_rate, double gradient_scale) = 0;
  /// Returns true if step() communicates. If false, step() may fail on one rank without blocking the other ranks in it.
  virtual bool communicates() const { return false; }
  /// Returns all tensors that a checkpoint must save or load, in addition to the step count. They follow the order of
  /// the shards; none of them is loaded by this call.
  virtual std::vector<StateTensor> state() = 0;
  /// The tensors that step() leases, for a caller that budgets memory. Everything not named here is leased for one
  /// shard at a time.
  struct Takes {
    bool directions = false;     ///< true if step() uses memory::Resident::directions
    size_t shards = 1;           ///< maximum number of shards of which one kind of tensor is leased at one time
    bool of_directions = false;  ///< that kind: true = directions, false = gradients
  };
  virtual Takes takes() const { return {}; }
  /// Returns true if some or all shards may move to `device` after this optimizer was made, whatever device they were
  /// leased on then. A rule that processes each shard on its own computes on the device of that shard. Other rules
  /// combine values of all shards on one device.
  virtual bool takes_shards_on(at::Device device) const { return device.is_cpu(); }
};

/// Makes the optimizer of `config`. `tensors` describes the whole model; `shards` hold parts of some of its tensors.
/// Rules that need whole tensors use `tensors`. No communication.
/// Errors: as check_optimizer(); stochastic_rounding of values that are not bf16; shards that the rule refuses.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                          const LogicalTensors& tensors);

}  // namespace colossal::optim
