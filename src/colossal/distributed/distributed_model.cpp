#include "colossal/distributed/distributed_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/tensor/tensor_layers.h"

namespace colossal::distributed {
namespace {

/// How the tensor mode cuts hidden states.
parallel::Split outside_of(const parallel::TensorConfig& config, comm::Mesh& mesh) {
  return config.size == 1 ? parallel::Split{} : parallel::make_layout(config, mesh).outside;
}

/// Axes of the tensor mode that cut neither the rows nor the features of hidden states: their ranks hold the same ones.
std::vector<std::string> copy_axes(const parallel::TensorConfig& config, const parallel::Split& outside) {
  std::vector<std::string> axes;
  const auto cuts = [](const std::vector<std::string>& names, const std::string& axis) {
    return std::find(names.begin(), names.end(), axis) != names.end();
  };
  for (const auto& axis : parallel::tensor_axes(config))
    if (!cuts(outside.rows, axis.name) && !cuts(outside.columns, axis.name)) axes.push_back(axis.name);
  return axes;
}

}  // namespace

std::unique_ptr<nn::Layers> make_layers(nn::Parameters& parameters, comm::Mesh& mesh,
                                        const parallel::TensorConfig& config) {
  if (config.size == 1) return std::make_unique<nn::SerialLayers>(parameters);
  return std::make_unique<parallel::TensorLayers>(parameters, parallel::make_layout(config, mesh));
}

parallel::ModelCosts model_costs(const models::ModelShape& shape, int64_t sequence) {
  const auto flops = [&, &architecture = models::architecture(shape.architecture)](int64_t layers) {
    models::ModelShape some = shape;
    some.layers = layers;
    return architecture.flops(some, sequence);
  };
  const double block = flops(2) - flops(1);
  return {0, std::vector<double>(shape.layers, block), flops(1) - block};
}

DistributedModel::DistributedModel(comm::Mesh& mesh, const ParallelConfig& config, const models::ModelShape& shape,
                                   nn::Parameters::Options options, const Workload& workload)
    : mesh_(mesh), outside_(outside_of(config.tensor, mesh)) {
  mesh.group("pipeline");  // for everywhere(): made there, it would wait for stages that still compute
  parallel::PipelineConfig pipeline = config.pipeline;
  pipeline.micro_batches = workload.micro_batches;
  parallel::PipelinePlan plan = parallel::make_plan(pipeline, model_costs(shape, workload.sequence));
  cuts_ = plan.cuts;
  if (pipeline.size > 1)
    options.stages = [plan, shape](const std::string& name) {
      std::set<int> ranks;
      for (const int64_t stage : models::stages_using(name, shape, plan.cuts))
        for (const int rank : plan.ranks_of_stage(stage)) ranks.insert(rank);
      return std::vector<int>(ranks.begin(), ranks.end());
    };
  parameters_ = std::make_unique<nn::Parameters>(mesh.place(), options);
  model_ = models::make_model(shape, *make_layers(*parameters_, mesh, config.tensor));
  const auto hidden = at::TensorOptions().dtype(options.dtype).device(options.device);
  executor_ = std::make_unique<parallel::PipelineExecutor>(
      std::move(plan.schedule),
      parallel::PipelineExecutor::Surroundings{&mesh, &mesh.group(copy_axes(config.tensor, outside_)),
                                               &parameters_->deferred(), hidden});
}

parallel::StageFunction DistributedModel::stage_function(const PassOf& pass, const ResultOf& result) {
  return [this, pass, result](int stage, int micro_batch, const at::Tensor& input) {
    const bool embeds = stage == 0, ends = stage + 2 == static_cast<int>(cuts_.size());
    const Pass p = pass(micro_batch);
    const at::Tensor hidden =
        models::run_stage(model_, {cuts_[stage], cuts_[stage + 1], embeds, ends}, embeds ? p.inputs : input, p.step);
    return ends ? result(micro_batch, hidden) : hidden;
  };
}

std::vector<int64_t> DistributedModel::hidden_sizes(const at::Tensor& inputs) const {
  return {inputs.size(0) / model_.batch_parts, models::tokens_of(model_, inputs),
          model_.shape.hidden / mesh_.place().size(outside_.columns)};
}

void DistributedModel::train(const PassOf& pass, const ResultOf& loss,
                             const parallel::BeforeGradients& before_gradients) {
  executor_->train(stage_function(pass, loss), hidden_sizes(pass(0).inputs), before_gradients);
}

std::vector<at::Tensor> DistributedModel::forward(int micro_batches, const PassOf& pass, const ResultOf& result) {
  auto results = executor_->forward(stage_function(pass, result), micro_batches, hidden_sizes(pass(0).inputs));
  for (int i = 0; i < micro_batches; ++i)
    if (const Pass p = pass(i); p.step.cache) p.step.cache->advance(p.step.sequences, p.inputs.size(1));
  return results;
}

at::Tensor DistributedModel::everywhere(const Pass& pass, const ResultOf& result, const at::Tensor& like) {
  const auto results = forward(1, [&](int) { return pass; }, result);
  comm::Group& ranks = mesh_.group("pipeline");
  if (ranks.size() == 1) return results.front();
  at::Tensor value = results.empty() ? at::empty_like(like) : results.front().to(like.scalar_type()).contiguous();
  const schedule::Placement& place = executor_->schedule().placement;
  ranks.broadcast(value, place.rank_of(0, place.stages() - 1)).wait();
  return value;
}

}  // namespace colossal::distributed
