#include "colossal/train/model_optimizers.h"

#include <algorithm>

#include "colossal/optim/average.h"
#include "colossal/optim/learning_rate.h"

namespace colossal::train {
namespace {

/// Returns the index in `own` of the optimizer of a model; the size of `own` for that of the run.
size_t place_of(const std::string& model, const std::vector<OwnOptimizer>& own) {
  const auto found = std::find_if(own.begin(), own.end(), [&](const OwnOptimizer& one) { return one.model == model; });
  return static_cast<size_t>(found - own.begin());
}

/// Calls work(config, is_mine) for the optimizer of the run, then for each of `own`; is_mine(parameter) says whether it
/// updates a parameter.
template <class Work>
void for_each_optimizer(const optim::OptimizerConfig& config, const std::vector<OwnOptimizer>& own, const Work& work) {
  const auto is_of = [&](size_t place) {
    return [&own, place](const nn::Parameter& p) { return place_of(p.model, own) == place; };
  };
  work(config, is_of(own.size()));
  for (size_t i = 0; i < own.size(); ++i) work(own[i].config, is_of(i));
}

}  // namespace

void apply_groups(const optim::OptimizerConfig& config, const std::vector<OwnOptimizer>& own, nn::Parameters& models) {
  for_each_optimizer(config, own,
                     [&](const optim::OptimizerConfig& of, const auto& is_mine) { of.groups.apply(models, is_mine); });
}

ModelOptimizers::ModelOptimizers(const optim::OptimizerConfig& config, const std::vector<OwnOptimizer>& own,
                                 const std::vector<memory::Shard>& shards, const nn::Parameters& models,
                                 comm::Mesh& mesh, at::Device device, double ema) {
  for_each_optimizer(config, own, [&](const optim::OptimizerConfig& of, const auto& is_mine) {
    const auto& one = all_.emplace_back(std::make_unique<One>(One{of, {}, nullptr}));
    // A shard has parameters of one model. One that is only padding needs no update.
    for (const memory::Shard& shard : shards)
      if (own.empty() || (!shard.pieces().empty() && is_mine(*shard.pieces().front().parameter)))
        one->shards.push_back(shard);
    one->optimizer = optim::make_averaging_optimizer(of, one->shards, {models, mesh, device, is_mine}, ema);
  });
}

double ModelOptimizers::learning_rate(const Step& step) const {
  return optim::learning_rate(all_.front()->config, step.of_schedule, step.all, step.batch_size);
}

void ModelOptimizers::step(const Step& step, double gradient_scale) {
  for (const auto& one : all_)
    one->optimizer->step(step.number, optim::learning_rate(one->config, step.of_schedule, step.all, step.batch_size),
                         gradient_scale);
}

bool ModelOptimizers::communicates() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& one) { return one->optimizer->communicates(); });
}

std::vector<optim::StateTensor> ModelOptimizers::state() {
  std::vector<optim::StateTensor> states;
  for (const auto& one : all_)
    for (optim::StateTensor& state : one->optimizer->state()) states.push_back(std::move(state));
  return states;
}

optim::Optimizer::Takes ModelOptimizers::takes() const {
  optim::Optimizer::Takes all;
  for (const auto& one : all_) {
    const optim::Optimizer::Takes own = one->optimizer->takes();
    all.directions |= own.directions;
    all.shards = std::max(all.shards, own.shards);
    all.of_directions |= own.of_directions;
  }
  return all;
}

bool ModelOptimizers::takes_shards_on(at::Device device) const {
  return std::all_of(all_.begin(), all_.end(),
                     [&](const auto& one) { return one->optimizer->takes_shards_on(device); });
}

}  // namespace colossal::train
