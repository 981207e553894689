// Places a model of a run on the run's mesh, and checks that it fits there.
//
//   config.validate();                                          // rules without the sizes of models and samples
//   train::check_sizes(config.parallel, shape, objective.example(1));
//
//   const std::shared_ptr<comm::Mesh> own = train::mesh_of(model, config.parallel, mesh);
//   const auto placed = train::place_model(run, model, *mesh, *own, options, main->shared_parameters());
//
//   train::ModelOnShapes rank_7(run, model, 7);      // what rank 7 has, without values and other ranks
//   rank_7.parameters();
#pragma once
#include <c10/util/Exception.h>

#include <memory>
#include <string>

#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/distributed/config.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/shape.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/nn/parameter.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/run_models.h"

namespace colossal::train {

/// Checks the sizes of a model and of the samples that `example` has. A sample without tokens has the patches of its
/// picture or clip, or the positions of the model (models::sequence_positions()). Errors: a hidden size or a number of
/// tokens that tensor or sequence parallelism cannot split; errors of distributed::check_attention_axes(),
/// check_norm_groups() and check_experts(), such as a dense main model with parallel.expert. `name`: NamedModel::name.
void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape,
                 const tensor::Batch& example, const std::string& name = "");

/// Returns the mesh of the axes that split a model: `whole`, the run's, or a view of it (comm::Mesh::without).
std::shared_ptr<comm::Mesh> mesh_of(const NamedModel& model, const distributed::ParallelConfig& parallel,
                                    const std::shared_ptr<comm::Mesh>& whole);

/// Makes a model over `own`, its mesh_of(). `options` has dtype, device and what wraps the products of every model.
/// `shared`: the parameters of the models before it; null for the main model. `panels`: packs weights inside the
/// adapter, and must outlive the model; null = off. Communication and errors: as distributed::DistributedModel.
std::unique_ptr<distributed::DistributedModel> place_model(const ConfiguredRun& run, const NamedModel& model,
                                                           const comm::Mesh& whole, comm::Mesh& own,
                                                           nn::Parameters::Options options,
                                                           std::shared_ptr<nn::Parameters> shared,
                                                           const std::shared_ptr<nn::PackedWeights>& panels = nullptr);

/// Declares, as the model `name`, a frozen original of each parameter of the main model that trains and belongs to no
/// adapter. It has the same part, stages and initial values, and checkpoints leave it out. `main` and `parameters` may
/// be the same object. `options` has dtype, device and seed of `main`. Declares nothing if adapters alone train.
void declare_originals(const nn::Parameters& main, const std::string& name, nn::Parameters::Options options,
                       nn::Parameters& parameters);

/// Returns the first sentence of an error of LibTorch on the meta device, which names the operator that does not run
/// there, without the list of backends after it.
std::string missing_operator(const c10::Error& error);

/// A model of a run as one rank has it, on the meta device, over a simulated world. No communication.
class ModelOnShapes {
 public:
  /// `has_values`: false = values have a shape and no memory (nn::Parameters::Options::without_memory).
  /// Errors: as distributed::DistributedModel.
  ModelOnShapes(const ConfiguredRun& run, const NamedModel& model, int rank, bool has_values = false);
  /// The mesh of the run.
  comm::Mesh& mesh() { return *mesh_; }
  /// Returns the model; in place of the main model without its adapters the main model.
  distributed::DistributedModel& model() { return *model_; }
  /// Returns the parameters of the model; in place of the main model without its adapters the originals alone.
  nn::Parameters& parameters() { return originals_ ? *originals_ : model_->parameters(); }

 private:
  std::unique_ptr<comm::World> world_;
  std::shared_ptr<comm::Mesh> mesh_, own_;
  std::unique_ptr<distributed::DistributedModel> model_;
  std::unique_ptr<nn::Parameters> originals_;  // null = the model is another one than the main model without adapters
};

}  // namespace colossal::train
