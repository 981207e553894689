// Makes the engine of a run: checks its mesh and its models, and places each model.
#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/comm/launch/device.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/frozen_product.h"
#include "colossal/tensor/graph.h"
#include "colossal/train/engine.h"
#include "colossal/train/engine_panels.h"
#include "colossal/train/optimization.h"
#include "colossal/train/placed_model.h"
#include "colossal/train/step_reports.h"

namespace colossal::train {
namespace {

/// Checks the requirements of [training] cuda_graph that the config cannot check. A run on meta launches no kernels.
void check_cuda_graph(const models::ModelShape& shape, at::Device device) {
  require(shape.part<models::MixtureSizes>().experts == 0, "training",
          "cuda_graph needs a dense model, because each pass of a mixture of experts has other sizes: got ",
          shape.part<models::MixtureSizes>().experts, " experts; set training.cuda_graph = false");
  require(device.is_meta() || tensor::can_capture(device.type()), "training", "cuda_graph needs a CUDA device: got ",
          device.str(), "; set training.cuda_graph = false");
  require(shape.dropout == 0, "training",
          "cuda_graph needs a model without dropout, whose seeds would be recorded: got ", shape.dropout,
          "; set model.dropout = 0 or training.cuda_graph = false");
}

/// Makes the engine of models over a mesh that has the axes of the config.
std::unique_ptr<Engine> engine_of(std::shared_ptr<comm::Mesh> mesh, const ConfiguredRun& run,
                                  std::optional<at::Device> device) {
  const run::Config& config = run.config;
  for (const NamedModel& model : run.models)
    if (!model.is_main_without_adapters)
      check_sizes(model.layout(config.parallel), model.shape, run.objective_of(model)->example(1), model.name);
  if (!device) device = comm::choose_device(config.run.device, mesh->world().local_rank());
  if (config.training.cuda_graph) check_cuda_graph(run.models.main().shape, *device);
  return std::make_unique<Engine>(std::move(mesh), run, *device);
}

/// Formats sizes as "pipeline 2, data 4".
std::string axes_text(const tensor::MeshCoordinates& coordinates) {
  return join(coordinates.axes(), ", ",
              [](const tensor::MeshCoordinates::Axis& axis) { return concat(axis.name, " ", axis.size); });
}

void check_axes(comm::Mesh& mesh, const distributed::ParallelConfig& parallel) {
  const comm::Mesh wanted(mesh.world(), parallel.axes());
  const auto &got = mesh.coordinates().axes(), &want = wanted.coordinates().axes();
  const bool is_same = std::equal(got.begin(), got.end(), want.begin(), want.end(), [](const auto& a, const auto& b) {
    return a.name == b.name && a.size == b.size && a.batch_split == b.batch_split;
  });
  require(is_same, "parallel", "a mesh must have the axes of [parallel]: got ", axes_text(mesh.coordinates()),
          ", needed ", axes_text(wanted.coordinates()), "; make it of config.parallel.axes()");
}

void check_ranks(const comm::World& world, const run::Config& config) {
  config.validate();
  require(world.size() == config.parallel.ranks(), "parallel",
          "the number of ranks must be the product of the layout's sizes: got ", world.size(), " ranks, pipeline ",
          config.parallel.pipeline.size, " * data ", config.parallel.data,
          config.parallel.expert.size > 1 ? concat(" * expert ", config.parallel.expert.size) : "", " * sequence ",
          config.parallel.sequence.size, " * tensor ", config.parallel.tensor.size, " = ", config.parallel.ranks(),
          "; start that many or change [parallel]");
}

}  // namespace

Engine::Member Engine::make_member(const ConfiguredRun& run, const NamedModel& model, nn::Parameters::Options options) {
  if (model.is_main_without_adapters) {
    Member off{.name = model.name,
               .mesh = mesh_,
               .model = main().model,
               .panels = main().panels,
               .reports = {},
               .trains = false,
               .without_adapters = true};
    declare_originals(parameters(), model.name, options, parameters());
    for (const nn::Parameter& p : parameters().declared())
      if (p.model == model.name && p.value.defined())
        off.originals.emplace_back(&parameters().at(p.own_name()), &parameters().at(p.name));
    return off;
  }
  const std::shared_ptr<comm::Mesh> mesh = mesh_of(model, config_.parallel, mesh_);
  NamedModel placed = model;
  if (placed.adapter.product) placed.adapter.product = switchable(placed.adapter.product, run.models);
  std::shared_ptr<Panels> panels;
  if (model.panels) {
    require(model.panels->keeps_values, "prepacked",
            "weights of a model that trains must keep their values: set WeightPacking::keeps_values in the panels of ",
            model.name.empty() ? "the main model" : model.name);
    require(
        !model.panels->in_training || !fp8_, "prepacked",
        "panels in training need products in the dtype of the model: got precision.mode = \"fp8\"; set another one, "
        "or leave out WeightPacking::in_training");
    panels = std::make_shared<Panels>(*model.panels);
  }
  std::shared_ptr<distributed::DistributedModel> made =
      place_model(run, placed, *mesh_, *mesh, options, members_.empty() ? nullptr : distributed().shared_parameters(),
                  panels ? std::shared_ptr<nn::PackedWeights>(panels, &panels->weights) : nullptr);
  const auto& declared = made->parameters().declared();
  const bool trains = std::any_of(declared.begin(), declared.end(),
                                  [&](const nn::Parameter& p) { return p.treatment.trains && p.model == model.name; });
  require(trains || !model.optimizer, "model", "an optimizer must belong to a model that is trained: got one for ",
          model.name, ", which is frozen; leave it out");
  auto reports = std::make_unique<StepReports>(made->model(), options.device, model.name);
  int64_t copies = 1;  // the axes over which gradients are summed, although the model is whole along them
  for (const tensor::MeshCoordinates::Axis& axis : mesh_->coordinates().axes())
    if (mesh->size(axis.name) < axis.size &&
        (axis.name == "pipeline" || axis.batch_split == tensor::BatchSplit::Tokens))
      copies *= axis.size;
  return {model.name, mesh, std::move(made), std::move(panels), std::move(reports), trains, copies};
}

/// Returns the wrapper of an adapter. It can be switched off if a model of the run needs that.
nn::Parameters::Options::ProductOf Engine::switchable(const nn::Parameters::Options::ProductOf& adapter,
                                                      const RunModels& models) const {
  const bool is_switched =
      std::any_of(models.begin(), models.end(), [](const NamedModel& one) { return one.is_main_without_adapters; });
  if (!is_switched) return adapter;
  return [adapter, off = without_adapters_](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                                            nn::Parameters& parameters) {
    std::shared_ptr<const nn::Product> adapted = adapter(product, weight, parameters);
    // without adapters the weight may still have another form, which the adapter gave it
    return nn::with_switch(std::move(adapted), nn::reads_frozen_form(product, weight, parameters), off);
  };
}

const Engine::Member& Engine::member(const std::string& name) const {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& one) { return one.name == name; });
  if (found != members_.end()) return *found;
  const auto name_of = [](const Member& one) { return one.name.empty() ? "\"\" (the main model)" : one.name; };
  throw Error("model", concat("no model has the name ", name, ": there are ", join(members_, ", ", name_of)));
}

distributed::DistributedModel& Engine::model(const std::string& name) {
  const Member& one = member(name);
  require(!one.without_adapters, "model", "only passes of the engine switch adapters off: got model ", name,
          ", which is the main one without its adapters; call forward()");
  return *one.model;
}

std::unique_ptr<Engine> initialize(comm::Mesh& mesh, const run::Config& config, const RunModels& models,
                                   std::optional<at::Device> device) {
  check_ranks(mesh.world(), config);
  check_axes(mesh, config.parallel);
  return engine_of(std::shared_ptr<comm::Mesh>(std::shared_ptr<void>(), &mesh), {config, models}, device);
}

std::unique_ptr<Engine> initialize(comm::World& world, const run::Config& config, const RunModels& models,
                                   std::optional<at::Device> device) {
  check_ranks(world, config);
  return engine_of(std::make_shared<comm::Mesh>(world, config.parallel.axes()), {config, models}, device);
}

}  // namespace colossal::train
