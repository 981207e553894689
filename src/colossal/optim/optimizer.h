// Optimizers over shards of parameters, and the registry of their names.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"
#include "colossal/optim/learning_rate.h"
#include "colossal/optim/parameter_groups.h"

namespace colossal::optim {

/// [optimizer]. A rule refuses the keys that it does not use.
struct OptimizerConfig {
  std::string name = "adamw";
  double learning_rate = 1e-3;
  std::vector<double> betas;  ///< empty: the rule's own
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
  double trust = 1e-3;
  int64_t rank = 128;
  int64_t update_every = 200;
  double projection_scale = 0.25;
  bool stochastic_rounding = false;
  ScheduleConfig schedule;
  ParameterGroups groups;
  int64_t warmup_steps = 10;
  double final_learning_rate = 0.1;
  std::string learning_rate_scaling = "none";
  int64_t reference_batch = 0;
  void fields(Fields& f);
};

/// One tensor of an optimizer's state.
struct StateTensor {
  std::string name;  ///< "exp_avg.blocks.0.mlp.up.weight"
  at::Tensor value;
  tensor::ShardSpec spec;                ///< of what it belongs to: mostly the parameter's own
  std::optional<tensor::FlatPart> part;  ///< `value` is 1-D and this part of a local tensor of `spec`; none: it is the local tensor
};

/// The state of one piece under its parameter's spec: `flat` is as long as the shard.
StateTensor state_of_piece(const std::string& kind, const at::Tensor& flat, const memory::Piece& piece);

/// An update rule over the shards of this rank, which outlive it. What it needs of whole tensors (norms, means) it adds up over the mesh, so that a
/// step is the same under every layout.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of all values, and of their copies, from their gradients times `gradient_scale`. `step` counts from 1. Collective among all ranks.
  virtual void step(int64_t step, double learning_rate, double gradient_scale) = 0;
  /// Everything that must be saved, beside the step.
  virtual std::vector<StateTensor> state() = 0;
  /// Called when `state`, which state() returned, has been filled from a checkpoint: rules that keep their state in another form take it back.
  virtual void loaded(const std::vector<StateTensor>& /*state*/) {}
};

/// Errors ("optimizer"): keys that the rule does not use and that are not at their default, naming the rule; another number of betas than it
/// has; what else it refuses in `config`.
void check_optimizer(const OptimizerConfig& config);

/// Communication: what the rule's constructor says, none for most. Collective among all ranks.
/// Errors: those of check_optimizer; stochastic_rounding of values that are not bf16; what the rule refuses in `shards`.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards, comm::Mesh& mesh);

}  // namespace colossal::optim
