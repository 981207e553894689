#include "colossal/train/placed_model.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "colossal/comm/simulated_world.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/shape_parts.h"

namespace colossal::train {

void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape,
                 const tensor::Batch& example, const std::string& name) {
  distributed::check_experts(parallel, shape, name);
  distributed::check_attention_axes(parallel, shape, name);
  distributed::check_norm_groups(parallel, shape);
  const bool folds = shape.part<models::FoldingSizes>().single > 0;
  const int64_t tokens = folds                  ? example.at("aatype").size(1)
                         : example.has_tokens() ? example.tokens()
                                                : models::sequence_positions(shape, example);
  if (folds) distributed::check_residues(parallel.sequence.size, tokens);
  parallel::check_sizes(parallel.tensor, shape.hidden, 0, tokens);
  parallel::check_sequence(parallel.sequence, tokens, parallel::sequence_parts(parallel.tensor));
}

std::shared_ptr<comm::Mesh> mesh_of(const NamedModel& model, const distributed::ParallelConfig& parallel,
                                    const std::shared_ptr<comm::Mesh>& whole) {
  const std::vector<comm::Mesh::Axis> own = model.layout(parallel).axes();
  std::vector<std::string> beside;
  for (const tensor::MeshCoordinates::Axis& axis : whole->coordinates().axes()) {
    const auto is_own = [&](const comm::Mesh::Axis& one) { return one.name == axis.name && one.size == axis.size; };
    if (std::none_of(own.begin(), own.end(), is_own)) beside.push_back(axis.name);
  }
  return beside.empty() ? whole : std::make_shared<comm::Mesh>(whole->without(beside));
}

std::unique_ptr<distributed::DistributedModel> place_model(const ConfiguredRun& run, const NamedModel& model,
                                                           const comm::Mesh& whole, comm::Mesh& own,
                                                           nn::Parameters::Options options,
                                                           std::shared_ptr<nn::Parameters> shared,
                                                           const std::shared_ptr<nn::PackedWeights>& panels) {
  options.model = model.name;
  options.treatment = model.adapter.treatment;
  if (panels)
    options.products.push_back([panels](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                        nn::Parameters&) { return panels->wrap(std::move(product), weight); });
  if (model.adapter.product) options.products.push_back(model.adapter.product);
  if (whole.size("pipeline") > own.size("pipeline")) {  // every stage has the whole model
    std::vector<int> all(static_cast<size_t>(whole.size("pipeline")));
    std::iota(all.begin(), all.end(), 0);
    options.stages = [all](const std::string&) { return all; };
  }
  return std::make_unique<distributed::DistributedModel>(
      own, model.layout(run.config.parallel), model.shape, options,
      distributed::DistributedModel::Workload{run.config.micro_batches(),
                                              [&] { return run::costs_of(model.shape, *run.objective_of(model)); }},
      std::move(shared));
}

void declare_originals(const nn::Parameters& main, const std::string& name, nn::Parameters::Options options,
                       nn::Parameters& parameters) {
  std::vector<const nn::Parameter*> trained;
  for (const nn::Parameter& p : main.declared())
    if (p.model.empty() && p.treatment.trains && !p.is_added) trained.push_back(&p);
  if (trained.empty()) return;
  options.model = name;
  options.treatment = [](const std::string&) { return nn::Treatment{.trains = false, .saved = false}; };
  options.products.clear();
  options.stages = nullptr;
  if (!trained.front()->spec.stages.empty())
    options.stages = [trained](const std::string& own) {
      const auto is_it = [&](const nn::Parameter* p) { return p->name == own; };
      return (*std::find_if(trained.begin(), trained.end(), is_it))->spec.stages;
    };
  parameters.begin_model(options);
  for (const nn::Parameter* p : trained) {
    nn::Parameter& original = parameters.add(p->name, p->spec, p->init, p->decay > 0);
    original.hidden_matrix = p->hidden_matrix, original.looked_up = p->looked_up;
    original.is_stack = p->is_stack, original.is_shared = p->is_shared;
  }
}

std::string missing_operator(const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  return message.substr(0, std::min(message.find(". "), message.find('\n')));
}

ModelOnShapes::ModelOnShapes(const ConfiguredRun& run, const NamedModel& model, int rank, bool has_values)
    : world_(comm::make_simulated_world(rank, static_cast<int>(run.config.parallel.ranks()))),
      mesh_(std::make_shared<comm::Mesh>(*world_, run.config.parallel.axes())),
      own_(mesh_of(model, run.config.parallel, mesh_)) {
  nn::Parameters::Options options{run.config.precision.dtype(), at::kMeta};
  options.without_memory = !has_values;
  // Specs name the axes of the run's mesh, also for a model that only some of them split.
  if (model.is_main_without_adapters) {
    model_ = place_model(run, run.models.main(), *mesh_, *mesh_, options, nullptr);
    originals_ = std::make_unique<nn::Parameters>(mesh_->coordinates(), options);
    declare_originals(model_->parameters(), model.name, options, *originals_);
    return;
  }
  auto shared = model.name.empty() ? nullptr : std::make_shared<nn::Parameters>(mesh_->coordinates(), options);
  model_ = place_model(run, model, *mesh_, *own_, options, std::move(shared));
}

}  // namespace colossal::train
