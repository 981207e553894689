// The training step of one rank: forward, backward, reduction, clipping, update. Knows no files and no clocks.
//
//   const auto engine = train::initialize(world, config, shape);     // every rank; sharded as config.parallel says
//   for (int64_t i = 0; i < config.training.steps; ++i) {
//     engine->zero_grad();
//     const double loss = engine->train_step(batches.next());        // this replica's rows of the global batch
//     engine->step();
//   }
//
// Several models over one mesh, which share the budgets and the optimizer:
//
//   comm::Mesh mesh(world, config.parallel.axes());
//   const auto engine = train::initialize(
//       mesh, config, {{.shape = policy}, {.name = "reference", .shape = policy, .adapter = nn::frozen()}});
//   const auto before = engine->forward(batch, log_probabilities, "reference");      // on the ranks of its last stage
//   engine->train_step(with(batch, before), weight, preference_loss);                // of the main model
//   infer::Engine sampler(engine->model(""), options);                               // between two steps
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/models/model.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/device_use.h"
#include "colossal/train/named_model.h"
#include "colossal/train/step_result.h"

namespace colossal::distributed {
class DistributedModel;
}
namespace colossal::memory {
class ChunkStore;
class TieredHome;
}  // namespace colossal::memory
namespace colossal::nn {
class Fp8Layers;
}

namespace colossal::train {

class CapturedPass;
class Optimization;
class StepReports;

/// What the model makes of batches that it does not learn from. The same on all ranks.
struct Evaluation {
  std::vector<double> sums{};  ///< those of run::Objective::evaluate(), over all samples
  double weight = 0;           ///< such as the number of labels that count (run::Objective::weight)

  /// Returns the first sum divided by the weight: the mean loss, unless the objective has other sums.
  double loss() const { return run::mean_of(sums.at(0), weight); }
  /// Adds another evaluation by the same objective.
  Evaluation& operator+=(const Evaluation& other) {
    sums.resize(other.sums.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += other.sums[i];
    weight += other.weight;
    return *this;
  }
};

/// Models made parallel as the config asks, with their optimizer. Made by initialize(). All ranks call the same members
/// in the same order.
///
/// The main model has no name, and is meant where none is given. Models share their parameters' store, so an idle one
/// can leave for host memory or the disk of [memory], and one optimizer updates all that trains. A chunk has parameters
/// of one model. A trained model that no pass of a step went through has gradients of zero in that step.
/// Errors of all members that take the name of a model ("model"): an unknown one, with the names that there are.
class Engine : public Resumable {
 public:
  /// Computes a result from the end of the model, on the ranks of the last stage. end[0] is the result of the final
  /// norm; `step` is the step that the layers were given. In training the result is one number, the sum of the losses
  /// of the micro-batch, equal on all ranks of the model. Results of nn::LossHead and nn::Outputs are equal on them.
  using Loss = std::function<at::Tensor(const models::Model& model, const models::States& end, const nn::Step& step)>;

  /// `models`: with their objectives, the main one first. `mesh` outlives the engine, or is its own.
  Engine(std::shared_ptr<comm::Mesh> mesh, const run::Config& config, const std::vector<NamedModel>& models,
         at::Device device);
  ~Engine();

  /// Sets all gradients to zero. To be called before the first train_step() of each step. A step may have several:
  /// their gradients add up in the dtype of gradients (fp32 if training.accumulate > 1), and each has its own dropout.
  void zero_grad();
  /// Forward and backward of this rank's share of a global batch (B/data rows, cut in config.micro_batches()) through
  /// the main model, by the objective of the run. Adds to the gradients d(mean loss over the global batch); when it
  /// returns they are sums over the batch axes and over copies in other stages.
  ///
  /// Returns:       that mean loss, the same on all ranks.
  /// Communication: over the axes that deal out rows: all_reduce of [1] (weight); gradients of the model: see
  ///                parallel::GradientReducer; parameters under ZeRO: see memory::ChunkStore; over "pipeline" and the
  ///                axes of rows of [1] (loss); along the pipeline: see parallel::PipelineExecutor; over the axes of
  ///                the tensor mode: see parallel::TensorLayers.
  /// Cost:          on a device the host waits once, at the end, and for no batch that is data::pinned(). It reads with
  ///                the loss what step() has to know of the gradients; who changes these in between does so by store().
  /// Errors:        a batch that the objective refuses (run::Objective::check); a batch with other tokens left out than
  ///                those that this rank does not take, or whose rows do not divide into micro-batches ("data");
  ///                before any communication.
  double train_step(const tensor::Batch& batch);
  /// Performs a step with a loss of the caller's. The batch has the fields that the model and the loss read:
  ///
  ///   const auto squared = [](const models::Model&, const models::States& end, const nn::Step& step) {
  ///     return (end[0] - step.batch->at("targets")).square().sum();     // the model ends in nn::Outputs
  ///   };
  ///   engine->train_step(batch, static_cast<double>(batch.rows()), squared);
  ///
  /// `weight`:  the weight of this rank's rows, such as their number of targets. Gradients and the returned mean are
  ///            those of the sum of all losses of the global batch, divided by the sum of the weights of all its rows
  ///            (by 1 if that sum is 0).
  /// `model`:   that the batch goes through; the results of other models are constants in its loss. A step may have
  ///            such calls for several models.
  /// Errors:    "training": a weight that is negative or not finite; a model that is frozen. Errors of the other
  ///            overload, except those of the objective. All of them before any communication. Later: a loss that is
  ///            not one number.
  /// training.graph has no effect on such a step: it is not replayed.
  double train_step(const tensor::Batch& batch, double weight, const Loss& loss, const std::string& model = "");
  /// A pass without gradients or dropout. Returns the result of each micro-batch, a tensor of any sizes, in the order
  /// of the rows, on the ranks of the last stage; other ranks get an empty list. If there is a pipeline and the rows
  /// divide, the micro-batches are those of training; otherwise there is one.
  /// Communication: that of the layers and the pipeline. Errors: those of train_step(), before any communication.
  std::vector<at::Tensor> forward(const tensor::Batch& batch, const Loss& result, const std::string& model = "");
  /// Clips, updates, counts the step, and calls models::Model::end_step of each model that passes went through, with
  /// what its layers reported (nn/reports.h) in all micro-batches since zero_grad(). The gradient norm is that of all
  /// models together. Rows of a model with a name begin with it: "reference.blocks.0.balance".
  ///
  /// Communication: one all_reduce of [1] over all ranks; of a model with reports also one of all sums and one of all
  ///                maxima, 8 bytes per element.
  /// Cost:          no wait for the device.
  StepResult step();
  /// The objective's sums and weight of `batch` over all ranks, without gradients or dropout. Communication: over
  /// "pipeline" and the axes that deal out rows all_reduce of [k + 1], of k sums and the weight. Through the main
  /// model.
  Evaluation evaluate(const tensor::Batch& batch);

  /// The rows of loss terms that each step() returns, without their values: for checks of their names.
  std::vector<Metric> loss_rows() const;

  int64_t steps_done() const override;
  /// Parameters (masters, where there are some), optimizer states, buffers, the step.
  checkpoint::TrainingState state() override;
  void loaded(const checkpoint::TrainingState& state) override;
  void check_progress(const nlohmann::json& progress) const override;
  /// What this rank updates of each parameter under the parameter's name, and the model's buffers, to be filled with
  /// weights from elsewhere (checkpoint::ExternalNames::model); then weights_loaded(), on all ranks. Of all models.
  std::vector<checkpoint::NamedTensor> weights();
  void weights_loaded();

  /// Where parameters, gradients and states of this rank lie; null without tiers of [memory].
  const memory::TieredHome* tiers() const;
  /// What this rank's device had; none without memory.device.
  std::optional<DeviceUse> device_use() const;
  /// The tokens of each row of a batch that this rank reads, if ranks share them and no documents say which: its own
  /// of all fields that are cut. Empty: all. A batch may leave out the others (tensor::Batch::wanted).
  std::vector<tensor::TokenRun> tokens_read() const;

  const run::Objective& objective() const { return *objective_; }
  /// The model of a name over the ranks of the mesh, for passes of the caller's own and for infer::Engine, between two
  /// steps. It ends its passes itself.
  distributed::DistributedModel& model(const std::string& name) { return *member(name).model; }
  /// The main model.
  distributed::DistributedModel& distributed() { return *members_.front().model; }
  models::Model& model();
  /// The parameters of all models.
  nn::Parameters& parameters();
  memory::ChunkStore& store();
  comm::Mesh& mesh() { return *mesh_; }
  at::Device device() const;

 private:
  /// One model.
  struct Member {
    std::string name;
    std::unique_ptr<distributed::DistributedModel> model;
    std::unique_ptr<StepReports> reports;
    bool trains;  // a parameter of it does
  };
  Member make_member(const NamedModel& model, nn::Parameters::Options options);
  void make_groups();
  const Member& member(const std::string& name) const;
  const Member& main() const { return members_.front(); }
  nn::Step training_step_of(const Member& member, const tensor::Batch& micro_batch, int64_t index) const;
  /// What both overloads of train_step() do. `by_graph`: `loss` is the one that captured() records.
  double train_on(const Member& member, const tensor::Batch& batch, double weight, const Loss& loss, bool by_graph);
  Loss objective_loss() const;
  std::vector<at::Tensor> train(const Member& member, const tensor::Batch& batch, double factor, const Loss& loss);
  std::vector<at::Tensor> train_by_graph(const tensor::Batch& batch, double factor);
  bool is_for_graph(const tensor::Batch& batch) const;
  at::Tensor captured(const tensor::Batch& micro_batch, const at::Tensor& factor);
  tensor::Batch checked(const Member& member, const tensor::Batch& batch) const;
  /// The steps of the micro-batches of a pass without gradients.
  std::vector<nn::Step> forward_steps(const Member& member, const tensor::Batch& batch) const;
  /// tokens_read() of a batch that has these fields.
  std::vector<tensor::TokenRun> tokens_read(const tensor::Batch& batch) const;

  run::Config config_;
  std::shared_ptr<const run::Objective> objective_;
  std::shared_ptr<comm::Mesh> mesh_;
  std::unique_ptr<nn::Fp8Layers> fp8_;  // null: no fp8
  std::vector<Member> members_;         // the main model first
  int64_t passes_ = 0;                  // of training since zero_grad()
  std::unique_ptr<Optimization> optimization_;
  std::unique_ptr<CapturedPass> captured_;  // null: every pass is launched operator by operator
};

/// Builds the engine of this rank for models over `mesh`, with every group that its steps need. Collective among all
/// ranks of the mesh. The caller's mesh outlives the engine; several engines over one mesh share its groups, and each
/// has its own optimizer and budgets. The objective of the main model is that of the run.
/// Errors: a mesh whose axes are not those of [parallel], check_names(), and those of the other overload.
std::unique_ptr<Engine> initialize(comm::Mesh& mesh, const run::Config& config, const std::vector<NamedModel>& models,
                                   std::optional<at::Device> device = {});

/// Builds the engine of one model over a mesh of its own. Collective among all ranks of `world`.
/// `objective`: of the run; null: the built-in one that the architecture names.
/// `device`: of the model; none: that of [run] device. On "meta" tensors have shapes and no numbers: steps take the
/// time of their bookkeeping, and losses, norms and evaluations are zero. Over a world whose groups record calls that
/// shows what a rank of any number would send and compute, on what [run] device says: "cuda" also where there is none.
/// `adapter`: which parameters are frozen, and what is added to linear layers; the same on all ranks.
/// Errors: world.size() that is not the product of [parallel]; whatever the config or the model refuse; ("model") an
///         adapter that leaves nothing to train; ("prepacked") one that packs weights and does not keep their values.
///         Nothing is communicated before.
std::unique_ptr<Engine> initialize(comm::World& world, const run::Config& config, const models::ModelShape& shape,
                                   std::optional<at::Device> device = {},
                                   std::shared_ptr<const run::Objective> objective = nullptr,
                                   const nn::Adapter& adapter = {});

}  // namespace colossal::train
