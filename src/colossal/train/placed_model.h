// Places a model of a run on the run's mesh.
//
//   const std::shared_ptr<comm::Mesh> own = train::mesh_of(model, config.parallel, mesh);
//   const auto placed = train::place_model(config, models, model, *mesh, *own, options, main->shared_parameters());
//
//   train::ModelOnShapes rank_7(config, models, model, 7);      // what rank 7 has, without values and other ranks
//   rank_7.model().parameters();
#pragma once
#include <memory>

#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/config.h"
#include "colossal/train/run_models.h"

namespace colossal::train {

/// Returns the mesh of the axes that split a model: `whole`, the run's, or a view of it (comm::Mesh::without).
std::shared_ptr<comm::Mesh> mesh_of(const NamedModel& model, const distributed::ParallelConfig& parallel,
                                    const std::shared_ptr<comm::Mesh>& whole);

/// Makes a model over `own`, its mesh_of(). `options` has dtype, device and what wraps the products of every model.
/// `shared`: the parameters of the models before it; null for the main model. Communication and errors: as
/// distributed::DistributedModel.
std::unique_ptr<distributed::DistributedModel> place_model(const run::Config& config, const RunModels& models,
                                                           const NamedModel& model, const comm::Mesh& whole,
                                                           comm::Mesh& own, nn::Parameters::Options options,
                                                           std::shared_ptr<nn::Parameters> shared);

/// A model of a run as one rank has it, on the meta device, over a simulated world. No communication.
class ModelOnShapes {
 public:
  /// `has_values`: false = values have a shape and no memory (nn::Parameters::Options::without_memory).
  /// Errors: as distributed::DistributedModel.
  ModelOnShapes(const run::Config& config, const RunModels& models, const NamedModel& model, int rank,
                bool has_values = false);
  /// The mesh of the run.
  comm::Mesh& mesh() { return *mesh_; }
  distributed::DistributedModel& model() { return *model_; }

 private:
  std::unique_ptr<comm::World> world_;
  std::shared_ptr<comm::Mesh> mesh_, own_;
  std::unique_ptr<distributed::DistributedModel> model_;
};

}  // namespace colossal::train
