// The training step of one rank: forward, backward, reduction, clipping, update. Knows no files and no clocks.
#pragma once
#include <memory>
#include <optional>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/data/batches.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/train/config.h"

namespace colossal::train {

/// What a step did, the same on all ranks.
struct StepResult {
  double learning_rate;
  double gradient_norm;  ///< before clipping: L2, or the largest magnitude if training.clip_by is "largest"
  bool skipped = false;  ///< gradients overflowed in fp16: parameters are as they were
};

/// Of a batch that was only looked at, the same on all ranks.
struct Evaluation {
  double loss;                     ///< mean over all counted labels
  std::optional<double> accuracy;  ///< share of them that the model finds most probable; of models of images
};

/// A model made parallel as the config asks, with its optimizer. Made by initialize().
///
///   for (int64_t i = 0; i < steps; ++i) { engine.zero_grad(); double loss = engine.train_step(batches.next()); engine.step(); }
class Engine {
 public:
  Engine(comm::World& world, const Config& config, const models::ModelShape& shape);
  ~Engine();

  void zero_grad();
  /// Forward and backward of this rank's share of a global batch (B/data rows, cut in config.micro_batches()). Adds to the gradients
  /// d(mean loss over all counted labels of the global batch); when it returns they are sums over the data axis and over copies in other stages.
  ///
  /// Returns:       that mean loss, the same on all ranks.
  /// Communication: over "data": all_reduce of [1] (their count), of the gradients (see parallel::GradientReducer), of parameters under ZeRO (memory::ChunkStore); over "pipeline" and "data" of [1] (loss); along the
  ///                pipeline: see parallel::PipelineExecutor; over the axes of the tensor mode: see parallel::TensorLayers.
  /// Errors:        inputs or labels that the model does not have (models::Architecture::check); before any communication.
  double train_step(const data::Batch& batch);
  /// Clips, updates, and counts the step. Communication: one all_reduce of [1] over all ranks.
  StepResult step();
  /// Loss and accuracy of `batch` over all ranks, without gradients or dropout. Communication: over "pipeline" and "data" all_reduce of [3].
  Evaluation evaluate(const data::Batch& batch);

  int64_t steps_done() const { return steps_done_; }
  /// Parameters (masters, where there are some), optimizer states, the step and the optimizer's name: to be saved, or filled from a checkpoint.
  checkpoint::TrainingState state();
  /// Goes on from what state() returned, filled. Communication: under ZeRO 1 and 2 all_gather of the parameters.
  void loaded(const checkpoint::TrainingState& state);
  /// Errors ("optimizer"): a checkpoint of this progress is of another optimizer, naming both.
  void check_progress(const nlohmann::json& progress) const;
  /// What this rank updates of each parameter under the parameter's name, to be saved or filled; after filling, weights_loaded().
  std::vector<checkpoint::NamedTensor> weights();
  void weights_loaded();

  models::Model& model() { return model_->model(); }
  nn::Parameters& parameters() { return model_->parameters(); }
  memory::ChunkStore& store();
  distributed::DistributedModel& distributed() { return *model_; }
  comm::Mesh& mesh() { return mesh_; }
  at::Device device() const;

 private:
  nn::Step step_of(const data::Batch& micro_batch) const;
  data::Batch checked(const data::Batch& batch) const;

  Config config_;
  comm::Mesh mesh_;
  std::unique_ptr<nn::Fp8Layers> fp8_;  // null: no fp8
  std::unique_ptr<distributed::DistributedModel> model_;
  struct Optimization;
  std::unique_ptr<Optimization> optimization_;
  int64_t steps_done_ = 0;
};

/// Builds the engine of this rank. Collective among all ranks of `world`.
/// Errors: world.size() that is not the product of [parallel]; whatever the config or the model refuse. Nothing is communicated before.
std::unique_ptr<Engine> initialize(comm::World& world, const Config& config, const models::ModelShape& shape);

/// The device of [run] device on this rank. Errors: cuda asked for where there is none.
at::Device choose_device(const std::string& name, int local_rank);

}  // namespace colossal::train
