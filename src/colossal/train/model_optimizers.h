// The optimizers of a run: that of the run, and those of models with one of their own.
//
//   train::ModelOptimizers all(config.optimizer, {{"critic", of_critic}}, store.shards(), parameters, mesh, device);
//   all.step({.number = 1, .of_schedule = 1, .all = 1000, .batch_size = 16}, optim::clip_factor(norm, 1.0));
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/memory/shard.h"
#include "colossal/nn/parameter.h"
#include "colossal/optim/optimizer.h"

namespace colossal::train {

/// The optimizer of one model that has its own.
struct OwnOptimizer {
  std::string model;
  optim::OptimizerConfig config;
};

/// Gives the parameters of each model the learning rates and weight decays of the groups of its optimizer. Errors: as
/// optim::ParameterGroups::apply().
void apply_groups(const optim::OptimizerConfig& config, const std::vector<OwnOptimizer>& own, nn::Parameters& models);

/// Divides the shards of several models among their optimizers. All ranks call the members in the same order.
class ModelOptimizers {
 public:
  /// The place of a step in the run, which gives the learning rates.
  struct Step {
    int64_t number = 1;       ///< counts updates from 1
    int64_t of_schedule = 1;  ///< counts steps from 1, also those without an update (loss scaling)
    int64_t all = 1;          ///< steps of the run
    int64_t batch_size = 1;   ///< samples of a step
  };

  /// `config` is for all models that are not in `own`. `device`: see optim::LogicalTensors. `ema`: decay of an average
  /// of the weights of every model (optim::make_averaging_optimizer()); 0 = none. Errors: as there.
  ModelOptimizers(const optim::OptimizerConfig& config, const std::vector<OwnOptimizer>& own,
                  const std::vector<memory::Shard>& shards, const nn::Parameters& models, comm::Mesh& mesh,
                  at::Device device, double ema = 0);

  /// Updates all shards, those of the run's optimizer first.
  void step(const Step& step, double gradient_scale);
  /// Returns the learning rate of the run's optimizer in a step.
  double learning_rate(const Step& step) const;
  /// Each is true if it is true of any optimizer.
  bool communicates() const;
  /// Returns the states of all optimizers.
  std::vector<optim::StateTensor> state();
  /// Returns what the most demanding optimizer takes. Optimizers work one after another.
  optim::Optimizer::Takes takes() const;
  bool takes_shards_on(at::Device device) const;

 private:
  struct One {
    optim::OptimizerConfig config;
    std::vector<memory::Shard> shards;
    std::unique_ptr<optim::Optimizer> optimizer;
  };
  std::vector<std::unique_ptr<One>> all_;  // optimizers refer to their shards, so no element may move
};

}  // namespace colossal::train
