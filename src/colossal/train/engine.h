// The training step of one rank: forward, backward, reduction, clipping, update. It does not use files or clocks.
//
//   const auto engine = train::initialize(world, config, shape);     // every rank; sharded as config.parallel says
//   for (int64_t i = 0; i < config.training.steps; ++i) {
//     engine->zero_grad();
//     const double loss = engine->train_step(batches.next());        // this replica's part of each micro-batch
//     engine->step();
//   }
//
// Several models over one mesh, which share memory budgets and the optimizer:
//
//   comm::Mesh mesh(world, config.parallel.axes());
//   const auto engine = train::initialize(
//       mesh, config, {{.shape = policy}, {.name = "reference", .shape = policy, .adapter = nn::frozen()}});
//   const auto both = engine->with_result(batch, "before", log_probabilities, "reference");  // a field of the batch
//   engine->train_step(both, weight, preference_loss);                               // of the main model
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
#include "colossal/nn/forward_context.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"
#include "colossal/tensor/batch.h"
#include "colossal/tensor/replica_rows.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/device_use.h"
#include "colossal/train/recompute_choice.h"
#include "colossal/train/run_models.h"
#include "colossal/train/step_result.h"

namespace colossal::distributed {
class DistributedModel;
}
namespace colossal::memory {
class ChunkStore;
class TieredStore;
}  // namespace colossal::memory
namespace colossal::nn {
class Fp8Products;
}  // namespace colossal::nn

namespace colossal::train {

class CapturedPass;
class Optimization;
class StepReports;

/// Results of the model on batches from which it does not learn. The same on all ranks.
struct Evaluation {
  std::vector<double> sums{};  ///< sums of run::Objective::evaluate(), over all samples
  double weight = 0;           ///< total weight, such as the number of labels that count (run::Objective::weight)

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

/// The models of a run, parallelized as the config specifies, with their optimizer. Made by initialize(). All ranks
/// call the same members in the same order.
///
/// The main model has an empty name, which is the default of parameters that name a model. All models share one chunk
/// store, so an unused model can be evicted to host memory or to the disk of [memory]. One optimizer updates all
/// trained parameters. A chunk holds parameters of one model only. A trained model through which no pass of a step went
/// has gradients of zero in that step.
/// Errors of all members that take the name of a model ("model"): an unknown name; the message lists the names.
class Engine : public Resumable {
 public:
  /// Computes a result from the end of the model, on the ranks of the last stage. end[0] is the result of the final
  /// norm. `step` is the context with which the layers ran. In training the result is one number, the sum of the losses
  /// of the micro-batch, equal on all ranks of the model. nn::LossHead and nn::Outputs return results that are equal on
  /// them.
  using Loss =
      std::function<at::Tensor(const models::Model& model, const models::States& end, const nn::ForwardContext& step)>;

  /// The engine shares ownership of `mesh`, unless the
  /// pointer owns nothing; then the mesh must outlive the engine.
  Engine(std::shared_ptr<comm::Mesh> mesh, const ConfiguredRun& run, at::Device device);
  ~Engine();

  /// Sets all gradients to zero. Must be called before the first train_step() of each step. A step may have several
  /// calls of train_step(). Their gradients add up in the dtype of gradients (fp32 if training.accumulate > 1), and
  /// each has its own dropout.
  void zero_grad();
  /// Runs forward and backward of the main model, with the objective of the run. Micro-batch i of m =
  /// config.micro_batches() is rows [iB/m, (i+1)B/m) of a global batch of B rows, in every layout. `batch` has this
  /// replica's part of the rows of micro-batch 0, then of micro-batch 1, and so on (replica_rows()): B / replicas rows.
  /// Adds d(mean loss over the global batch) to the gradients. When it returns, they are summed over the batch axes and
  /// over replicas in other stages.
  ///
  /// Returns:       this mean loss, the same on all ranks.
  /// Communication: over the axes that split rows: all_reduce of [1] (weight). Gradients of the model: see
  ///                parallel::GradientReducer; parameters under ZeRO: see memory::ChunkStore. Over "pipeline" and the
  ///                axes that split rows: all_reduce of [1] (loss). Along the pipeline: see parallel::PipelineExecutor.
  ///                Over the axes of the tensor mode: see parallel::TensorLayers.
  /// Cost:          with an accelerator the host waits once, at the end; it does not wait for the copy of a batch that
  ///                is data::pinned(). That wait also reads this rank's part of the gradient norm, which step() needs.
  ///                So code that changes gradients before step() must access them through store().
  /// Errors:        a batch that the objective refuses (run::Objective::check). "data": a partial batch that does not
  ///                hold exactly the tokens that this rank reads; rows that do not divide into micro-batches. Errors
  ///                are thrown before any communication.
  double train_step(const tensor::Batch& batch);
  /// Runs forward and backward with a loss that the caller supplies. The batch must have the fields that model and loss
  /// read:
  ///
  ///   const auto squared = [](const models::Model&, const models::States& end, const nn::ForwardContext& step) {
  ///     return (end[0] - step.batch->at("targets")).square().sum();     // the model ends in nn::Outputs
  ///   };
  ///   engine->train_step(batch, static_cast<double>(batch.rows()), squared);
  ///
  /// `weight` is the weight of this replica's rows, such as their number of targets. The sum of all losses of the
  /// global batch is divided by the sum of the weights of all its rows, or by 1 if that is 0. Gradients and the
  /// returned mean are those of the quotient.
  ///
  /// `model`:   the model through which the batch passes. The results of other models are constants in its loss. A step
  ///            may have such calls for several models.
  /// Errors:    "training": a weight that is negative or not finite; a model that is frozen. Errors of the other
  ///            overload, except those of the objective. All of them are thrown before any communication. Later: a loss
  ///            that is not one number.
  /// training.cuda_graph has no effect on such a call: it is not replayed.
  double train_step(const tensor::Batch& batch, double weight, const Loss& loss, const std::string& model = "");
  /// Does the same row by row, and scales the gradient of each row whose L2 norm over all parameters is above `limit`
  /// to that norm, before gradients are summed over rows and ranks. `loss` gets steps of one row, whose losses are
  /// those of the row. Dropout is that of train_step().
  ///
  /// Memory:        the gradients of the model once more on each rank.
  /// Communication: as train_step(). If ranks have other tokens of a row, an all_reduce of all gradients for each row
  ///                among them.
  /// Cost:          the host waits for the device once for each row.
  /// Errors ("training"): a limit that is not above 0; a pipeline, or ranks that share parameters ("tensor",
  ///                      "expert"); errors of train_step().
  double train_rows(const tensor::Batch& batch, double weight, const Loss& loss, double limit);
  /// Returns `batch` with the results of forward() as the field `field`, on every rank that reads this batch, the ranks
  /// of other stages included, so that the next pass can read them. The result of a micro-batch must be that of its
  /// whole rows and the same on all ranks of the model, as nn::LossHead and nn::Outputs return it. The example of the
  /// run's objective has the field, with the sizes, the dimensions and the dtype of the result of all rows; in fp64 a
  /// field of floating point has fp64. A field that the batch has is replaced by one of its sizes. Dimensions of kind
  /// Token are cut for the next pass; a loss that reads all tokens declares them Other.
  ///
  /// Communication: as forward(). If a pipeline splits the model, an all_reduce of the field over its stages.
  /// Errors ("objective"): an example without the field. "training": a result of other sizes, on the ranks of the last
  ///                       stage. Errors of forward().
  tensor::Batch with_result(const tensor::Batch& batch, const std::string& field, const Loss& result,
                            const std::string& model = "");
  /// Runs a pass without gradients or dropout. Returns the result of each micro-batch, a tensor of any sizes, in the
  /// order of the rows. Only the ranks of the last stage get results; other ranks get an empty list. With a pipeline,
  /// if the rows divide, the micro-batches are the same as in training; otherwise there is one. Communication: as the
  /// layers and the pipeline. Errors: as train_step(), before any communication.
  std::vector<at::Tensor> forward(const tensor::Batch& batch, const Loss& result, const std::string& model = "");
  /// The losses of rows and their gradient, on the device.
  struct FieldGradient {
    at::Tensor losses;    ///< of each row, [B]
    at::Tensor gradient;  ///< of their sum with respect to the field, with its sizes and dtype
  };
  /// Returns the gradient of a field of the batch, such as a picture that a critic judges. A loss of another model may
  /// take it as a constant. `losses` returns the loss of each row, [rows of the micro-batch]:
  ///
  ///   const auto judged = [](const models::Model&, const models::States& end, const nn::ForwardContext&) {
  ///     return -end[0].mean({1, 2});
  ///   };
  ///   const auto [losses, gradient] = engine->gradient_of(fake, "images", judged, "critic");
  ///
  /// Runs forward and backward without dropout, in the micro-batches of training if the rows divide. Parameters get no
  /// gradients, and blocks are not recomputed.
  /// Communication: parameters under ZeRO, in forward and in backward: see memory::ChunkStore.
  /// Errors ("training"): a model that ranks divide ("pipeline", "sequence" or "tensor"). Errors of
  ///                      DistributedModel::field_gradient(). All of them but those of losses are thrown before any
  ///                      communication.
  FieldGradient gradient_of(const tensor::Batch& batch, const std::string& field, const Loss& losses,
                            const std::string& model = "");
  /// Clips, updates and counts the step. The gradient norm covers all models together. Then calls
  /// models::Model::end_step of each model that had passes, with the reports of its layers (nn/reports.h) from all
  /// micro-batches since zero_grad(). The names of rows of a model with a name start with that name:
  /// "reference.blocks.0.balance".
  ///
  /// Communication: as Optimization::step(), e.g. one all_reduce of [1] over all ranks. A model with reports adds one
  ///                all_reduce of all sums and one of all maxima, 8 bytes per element. With fp8 also as
  ///                nn::Fp8Products::end_step().
  /// Cost:          does not wait for the device.
  StepResult step();
  /// Returns true during step(), and after a step() that threw.
  bool is_updating() const { return is_updating_; }
  /// Returns the objective's sums and weight of `batch` over all ranks, computed by the main model without gradients or
  /// dropout. Communication: one all_reduce of [k + 1], k sums and the weight, over "pipeline" and the axes that split
  /// rows.
  Evaluation evaluate(const tensor::Batch& batch);

  /// Returns the names of the models, the main one first.
  std::vector<std::string> model_names() const;
  /// Returns the rows of a global batch of `batch_size` rows that this replica passes to train_step():
  /// engine->replica_rows(8).of(global).
  tensor::ReplicaRows replica_rows(int64_t batch_size) const;
  /// Returns the rows of loss terms that each step() returns, without their values, so that their names can be checked.
  std::vector<Metric> loss_rows() const;

  int64_t steps_done() const override;
  /// Returns parameters (master weights, if there are any), optimizer states, buffers and the step.
  checkpoint::TrainingState state() override;
  /// Continues from state(), after it was filled from a checkpoint.
  void loaded(const checkpoint::TrainingState& state) override;
  /// Errors: as Optimization::check_progress().
  void check_progress(const nlohmann::json& progress) const override;
  /// Returns the elements that this rank updates of each parameter, under the parameter's name, and the model's
  /// buffers, for all models. The caller may fill them with weights from another source
  /// (checkpoint::ExternalNames::model), and must then call weights_loaded() on all ranks. A parameter that is stored
  /// as codes is among them as run::fillable_weights_of() says.
  std::vector<checkpoint::NamedTensor> weights();
  /// Returns the same elements as they are stored, codes included, for comparing.
  std::vector<checkpoint::NamedTensor> stored_weights();
  void weights_loaded();

  /// Returns the store of this rank's parameters, gradients and states; null without tiers of [memory].
  const memory::TieredStore* tiers() const;
  /// Returns the memory use of this rank's device; none without memory.device.
  std::optional<DeviceUse> device_use() const;
  /// Returns the ranges of tokens of each row that this rank reads. Ranks must split the tokens of a row for that, and
  /// the split must not depend on documents; otherwise the list is empty: all tokens. The ranges hold for all fields
  /// whose tokens are cut. A batch may omit other tokens (tensor::Batch::wanted).
  std::vector<tensor::TokenRun> tokens_read() const;

  /// Returns what memory.recompute = "auto" chose for the blocks of the main model on this rank. Other models in
  /// training then recompute each of their blocks.
  const RecomputeChoice& recomputation() const { return recomputation_; }
  const run::Objective& objective() const { return *objective_; }
  /// Returns a model by name, over the ranks of the mesh, for the caller's own passes and for infer::Engine, between
  /// two steps. The model ends its passes itself. Errors ("model"): the main model without its adapters, for which only
  /// passes of the engine switch them off.
  distributed::DistributedModel& model(const std::string& name);
  /// Packs the weights of a model (NamedModel::panels), unless the panels have its current weights: those after the
  /// last step() or loading. Passes of the engine through a model with in_training do so themselves. Call it before
  /// generation. Returns false if the model has no panels. Collective: under ZeRO 3 each weight is gathered.
  bool pack(const std::string& model = "");
  /// Frees the panels of a model until the next pack(), unless they have WeightPacking::in_training. Training passes do
  /// so, too.
  void release_panels(const std::string& model = "");
  /// Returns the bytes of a model's panels on this rank, 0 while there are none.
  int64_t panel_bytes(const std::string& model = "") const;
  /// Returns true if replicas shard parameters (parallel.zero = 3): every pass through a model is then collective among
  /// all ranks.
  bool shards_parameters() const;
  /// Returns the main model.
  distributed::DistributedModel& distributed() { return *members_.front().model; }
  /// Returns this rank's part of the main model.
  models::Model& model();
  /// Returns the parameters of all models.
  nn::Parameters& parameters();
  memory::ChunkStore& store();
  comm::Mesh& mesh() { return *mesh_; }
  at::Device device() const;

 private:
  struct Panels;
  /// One model and its reports.
  struct Member {
    std::string name;
    std::shared_ptr<comm::Mesh> mesh;  // the mesh of the run, without the axes that do not split the model
    std::shared_ptr<distributed::DistributedModel> model;
    std::shared_ptr<Panels> panels;  // null = none
    std::unique_ptr<StepReports> reports;
    bool trains;                    // true: at least one of its parameters is trained
    int64_t copies = 1;             // ranks that do the same work for the same rows, and add up its gradients
    bool without_adapters = false;  // true: the main model, with its adapters switched off
    /// Parameters of the main model that train in addition to the adapters, and their originals
    std::vector<std::pair<nn::Parameter*, const nn::Parameter*>> originals{};
  };
  std::vector<checkpoint::NamedTensor> with_buffers(std::vector<checkpoint::NamedTensor> weights);
  Member make_member(const ConfiguredRun& run, const NamedModel& model, nn::Parameters::Options options);
  nn::Parameters::Options::ProductOf switchable(const nn::Parameters::Options::ProductOf& adapter,
                                                const RunModels& models) const;
  void choose_recomputation(const ConfiguredRun& run);
  void make_groups();
  const Member& member(const std::string& name) const;
  const Member& main() const { return members_.front(); }
  static bool is_canonical(const Member& member);
  static void pack(const Member& member);
  static void release(const Member& member);
  static void use_panels(const Member& member);
  void weights_changed();
  /// Returns the step, canonical if the model's passes are.
  static nn::ForwardContext as_generated(const Member& member, nn::ForwardContext step);
  nn::ForwardContext training_step_of(const Member& member, const tensor::Batch& micro_batch, int64_t index) const;
  /// Returns the step of one row of a batch of this replica's rows.
  nn::ForwardContext training_step_of_row(const Member& member, const tensor::Batch& batch, int64_t row) const;
  /// Implements both overloads of train_step(). `by_graph`: `loss` is the one that captured() records.
  double train_on(const Member& member, const tensor::Batch& batch, double weight, const Loss& loss, bool by_graph);
  Loss objective_loss() const;
  std::vector<at::Tensor> train(const Member& member, const tensor::Batch& batch, double factor, const Loss& loss);
  std::vector<at::Tensor> train_by_graph(const tensor::Batch& batch, double factor);
  bool is_for_graph(const tensor::Batch& batch) const;
  at::Tensor captured(const tensor::Batch& micro_batch, const at::Tensor& factor);
  tensor::Batch checked(const Member& member, const tensor::Batch& batch) const;
  /// Returns the contexts of the micro-batches of a pass without gradients.
  std::vector<nn::ForwardContext> forward_steps(const Member& member, const tensor::Batch& batch) const;
  /// Returns tokens_read() for a batch that has these fields.
  std::vector<tensor::TokenRun> tokens_read(const tensor::Batch& batch) const;

  run::Config config_;
  const at::DeviceType meant_;  // the device that a run on meta simulates (tensor/device_meant.h)
  std::shared_ptr<const run::Objective> objective_;
  std::shared_ptr<comm::Mesh> mesh_;
  std::unique_ptr<nn::Fp8Products> fp8_;                                    // null = no fp8
  std::vector<Member> members_;                                             // the main model first
  std::shared_ptr<bool> without_adapters_ = std::make_shared<bool>(false);  // true: passes skip adapters
  int64_t passes_ = 0;                                                      // training passes since zero_grad()
  bool is_updating_ = false;
  RecomputeChoice recomputation_;
  std::shared_ptr<const Segments> segments_;  // of recomputation_; null = not chosen
  std::unique_ptr<Optimization> optimization_;
  std::unique_ptr<CapturedPass> captured_;  // null = every pass is launched operator by operator
};

/// Returns the device that a run on meta simulates: CUDA if `device` of [run] selects it, even on a machine without it.
/// The engine opens a tensor::MeantDevice of it in each of its functions that compute.
at::DeviceType simulated_by_meta(const run::RunConfig& run);

/// Builds the engine of this rank for models over `mesh`, with all groups that its steps need. Collective among all
/// ranks of the mesh. The mesh must outlive the engine. Several engines over one mesh share its groups; each has its
/// own optimizer and budgets. The objective of the main model is the run's.
/// Errors: a mesh whose axes differ from the axes of [parallel]; as the other overload.
std::unique_ptr<Engine> initialize(comm::Mesh& mesh, const run::Config& config, const RunModels& models,
                                   std::optional<at::Device> device = {});

/// Builds the engine of models over a mesh of their own. Collective among all ranks of `world`.
///
/// `models`:    a shape is one model that has no adapter and the built-in objective of its architecture.
/// `device`:    the device of the models; none = as [run] device. On "meta" tensors have shapes and no values: steps
///              take only the time of their bookkeeping, and losses, norms and evaluations are zero. With a world whose
///              groups record calls, this shows what a rank of any number would send and compute. The simulated device
///              is that of [run] device, even "cuda" on a machine without it.
/// Errors:      a world.size() that is not the product of the sizes of [parallel]; any error of config or model.
///              "model": adapters that leave no parameter to train; an optimizer for a model that is frozen.
///              "prepacked": an adapter that packs weights and does not keep their values. There is no communication
///              before these errors, except comm::agree(): one if an adapter has a `product`, those of Optimization
///              with tiers of [memory], and those of memory.recompute = "auto", for which see train/recompute_choice.h.
std::unique_ptr<Engine> initialize(comm::World& world, const run::Config& config, const RunModels& models,
                                   std::optional<at::Device> device = {});

}  // namespace colossal::train
