// A model distributed over the ranks of a mesh: the parameters, layers and stages of this rank, for training and
// inference.
//
//   std::vector<nn::ForwardContext> micro_batches;
//   for (int64_t i = 0; i < 4; ++i) micro_batches.push_back(nn::step_of(batch.part(i * rows, rows)));
//   const auto results = model.forward(
//       micro_batches, [&](int, const models::States& end, const nn::ForwardContext& step) {
//         return models::loss_sum(model.model(), end[0], step);
//       });
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/distributed/config.h"
#include "colossal/models/model.h"
#include "colossal/models/registry.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/paged_cache.h"
#include "colossal/nn/parameter.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/tensor/batch.h"

namespace colossal::distributed {

class DistributedModel {
 public:
  /// Workload for which the pipeline is planned.
  struct Workload {
    int64_t micro_batches = 1;  ///< number of micro-batches of a training step
    /// Returns the costs of a sample, by which the layers are divided into stages; null = the costs of one token,
    /// or of one picture or chain of a model that draws or folds
    std::function<models::Costs()> costs{};
  };
  /// Function that computes a result on the last stage. `end` has the states that the model's norm reads or writes;
  /// end[0] is the input of the head. `step` is the step that the layers got from ready(). In training the result is a
  /// scalar, the micro-batch's share of the loss.
  using ResultOf =
      std::function<at::Tensor(int micro_batch, const models::States& end, const nn::ForwardContext& step)>;

  /// `mesh` must have the axes of `config` and outlive the model. Rank r of the pipeline holds the parameters that its
  /// stages use.
  /// `shared` holds the parameters of other models on this mesh. This model adds its own to it as options.model
  /// (nn::Parameters::begin_model). Null = the model has parameters of its own.
  /// Communication: all ranks of the mesh must call. Groups are created; no tensors are sent.
  /// Errors ("pipeline", "2d", ...): a model or schedule that cannot be divided in this way; errors of check_heads(),
  ///                                 check_attention_axes(), check_norm_groups() and check_experts(). They are raised
  ///                                 before any communication.
  DistributedModel(comm::Mesh& mesh, const ParallelConfig& config, const models::ModelShape& shape,
                   nn::Parameters::Options options, const Workload& workload,
                   std::shared_ptr<nn::Parameters> shared = nullptr);

  /// Sets the function that is called at the end of a pass without gradients. The owner of the parameters' memory sets
  /// it, such as train::Optimization or run::StreamedWeights, which may then evict them. forward(), everywhere() and
  /// next_logits() call it after they have their results, on every rank of the pass, and pass its errors on. Null =
  /// off.
  void set_end_of_pass(std::function<void()> end) { end_of_pass_ = std::move(end); }

  // All passes take the nn::ForwardContext of each micro-batch (nn::step_of), with the complete batch, equal on all
  // ranks of a replica. All micro-batches of a call must have the same sizes.
  // Errors of all passes, before any communication: "data", a field that the model reads and the batch does not have;
  // "model", a step without a batch; "parallel", a batch that is not divisible (parallel::Layout::with_cut).

  /// Runs forward and backward of all micro-batches (see parallel::PipelineExecutor::train). The pass ends when the
  /// caller has reduced the gradients.
  void train(const std::vector<nn::ForwardContext>& micro_batches, const ResultOf& loss,
             const parallel::BeforeGradients& before_gradients);
  /// Runs forward and backward of one micro-batch outside of any schedule. It measures no time and keeps no state
  /// afterwards, so that it can be recorded (tensor/graph.h). Errors ("pipeline"): a rank that does not have all
  /// layers.
  void train_one(const nn::ForwardContext& micro_batch, const ResultOf& loss);
  /// Runs forward and backward of one micro-batch for the gradient of its field `field` alone. `losses` returns one
  /// loss for each row, [B]. Returns these losses, and the derivative of their sum * `scale` with respect to the field,
  /// with the field's sizes and dtype. No parameter gets a gradient, so a frozen model has such passes too. Blocks are
  /// not recomputed. It does not end the pass.
  /// Errors ("pipeline"): a rank that does not have all layers. "data": a field that has no floating point numbers.
  ///                      "model": losses of other sizes; losses that do not depend on the field.
  std::pair<at::Tensor, at::Tensor> field_gradient(const nn::ForwardContext& micro_batch, const std::string& field,
                                                   const ResultOf& losses, double scale = 1);
  /// Runs forward only. Returns the results of `result`, one per micro-batch, on the last-stage ranks of pipe 0
  /// (schedule/schedule.h), and an empty list on other ranks. Advances the cache of the step (nn::Decoding).
  std::vector<at::Tensor> forward(const std::vector<nn::ForwardContext>& micro_batches, const ResultOf& result);
  /// Runs a forward pass of one micro-batch through decoding_model() and returns the result on all ranks of the
  /// replica. `like` gives its sizes and dtype. Advances the cache of the step (nn::Decoding).
  at::Tensor everywhere(const nn::ForwardContext& micro_batch, const ResultOf& result, const at::Tensor& like);
  /// Runs everywhere() without the model's norm: `end` has the states after the last block.
  at::Tensor everywhere_before_norm(const nn::ForwardContext& micro_batch, const ResultOf& result,
                                    const at::Tensor& like);

  /// Makes the step that the layers of decoding_model() get from the step of a micro-batch.
  using MakeReady = std::function<nn::ForwardContext(const nn::ForwardContext& micro_batch)>;
  /// Runs `work` on the ranks that have the last stage of decoding_model(), and returns its result on all ranks of the
  /// replica. `like` gives its sizes and dtype. It is a pass of its own (set_end_of_pass), for layers after the end of
  /// the model. It does not advance caches.
  /// Communication: what `work` sends, and a broadcast of the result over the stages. All ranks of a replica must call
  ///                it.
  at::Tensor at_end(const std::function<at::Tensor(const MakeReady& ready)>& work, const at::Tensor& like);

  /// Returns the step that the layers of model() get: with the cut of its tokens, and with a batch on the device that
  /// has only the tokens that this rank reads. Passes call it for each micro-batch. Cost: copies fields to the device
  /// that are elsewhere; the host does not wait for copies of pinned memory.
  nn::ForwardContext ready(const nn::ForwardContext& micro_batch) const { return ready(training_, micro_batch); }
  /// Returns true if ready() keeps only some tokens of such a batch: ranks split sequences, and a field has a dimension
  /// tensor::Dim::Token.
  bool cuts_tokens(const tensor::Batch& batch) const;
  /// Returns the tokens that ready() reads from rows of `tokens` tokens without documents, in order: those that it
  /// keeps, and the Model::tokens_ahead tokens after each run. Adjacent runs are merged. Empty = all tokens.
  std::vector<tensor::TokenRun> tokens_read(int64_t tokens) const;
  /// Returns the batch on the device, except fields with `stays_whole`, which are on the host.
  tensor::Batch on_device(const tensor::Batch& batch) const;

  /// Makes a cache with room for `capacity` tokens of a sequence, for next_logits(). It is a nn::EncoderDecoderCache
  /// for a model with an encoder, and a parallel::SpreadCache if parallel.sequence splits tokens over ranks. Otherwise
  /// it is a nn::PagedCache, or a nn::KvCache if the layout splits rows over ranks or the device and dtype have no
  /// paged attention.
  std::unique_ptr<nn::AttentionCache> make_cache(int64_t capacity) const;
  /// Makes a cache for passes of packed sequences [batch_parts, T] through decoding_model(), with equal rows. If
  /// parallel.sequence splits tokens, consecutive pages of a sequence are on consecutive ones of the cache_ranks()
  /// ranks. `dtype` is the dtype of the pages, as for nn::PagedCache.
  std::unique_ptr<nn::PagedCache> make_paged_cache(int64_t pages, int64_t page_tokens,
                                                   std::optional<at::ScalarType> dtype = {}) const;
  /// Returns the logits [V] of the next token, on all ranks of the replica. It follows the last token of the first row
  /// of the batch in `step`. `step` must have a cache of make_cache(), which is advanced.
  ///
  /// Communication: if the cache is empty and the prompt has at least one token per rank of parallel.sequence, the
  ///                sequence mode splits the prompt over these ranks as in training. The last hidden state [B, H] is
  ///                broadcast to them. All other tokens go through decoding_model(): see parallel::with_spread_cache.
  ///                In both cases, the messages of head and pipeline follow.
  /// Errors:        ("parallel") a step without a cache; errors of models::head_of(). Both are raised before any
  ///                communication.
  at::Tensor next_logits(const nn::ForwardContext& step);

  /// Returns the parameters of this model and of the models that share them.
  nn::Parameters& parameters() { return *parameters_; }
  /// Returns the same parameters to construct another model that shares them.
  const std::shared_ptr<nn::Parameters>& shared_parameters() const { return parameters_; }
  /// Returns nn::Parameters::Options::model.
  const std::string& name() const { return name_; }
  models::Model& model() { return training_.model; }
  /// Returns layers over the same parameters that accept sequences of any length. These are the layers of model(),
  /// unless parallel.sequence or tensor.sequence splits tokens over ranks, or parallel.expert splits rows. Then the
  /// layers have a layout in which each rank has all tokens: parallel.sequence splits only the keys and values of a
  /// cache, and parallel.expert only the experts and their work. A denoiser (models/denoiser.h) and a folding model
  /// (models/folding/folding_model.h) have the layers of model() under every layout.
  const models::Model& decoding_model() const { return decoding().model; }
  models::Model& decoding_model() { return decoding_ ? decoding_->model : training_.model; }
  /// Returns the number of words of the vocabulary of which one rank computes the logits (VocabularyLossHead).
  int64_t words_of_rank() const;
  /// Returns the number of ranks that share the keys and values of a sequence's cache.
  int64_t cache_ranks() const { return sequence_.size; }
  /// Returns true if each rank computes only a part of the hidden states of decoding_model(): with a mode of tensor
  /// parallelism other than 1d, or with parallel.sequence.
  bool divides_states() const;
  /// Returns the layout of the layers of model(), which gives the tokens of a batch that each rank has.
  const parallel::Layout& layout() const { return training_.layout; }
  const parallel::PipelineExecutor& executor() const { return *training_.executor; }
  const std::vector<int64_t>& cuts() const { return cuts_; }

 private:
  /// Layers of one layout with their executor.
  struct LayoutLayers {
    parallel::Layout layout;
    models::Model model;
    std::vector<models::StateTransfer> transfers{};
    int first_trained = 0;  // first stage that uses a trained parameter
    std::unique_ptr<parallel::PipelineExecutor> executor;
  };
  LayoutLayers make_layers(parallel::Layout layout, const models::ModelShape& shape, schedule::Schedule schedule);
  /// Returns the first stage that uses a trained parameter, the same on all ranks; the number of stages if none is
  /// trained.
  int first_trained_stage(const models::ModelShape& shape) const;
  const LayoutLayers& decoding() const { return decoding_ ? *decoding_ : training_; }
  /// Returns the layers of a prompt whose tokens are split over ranks.
  const LayoutLayers& prompting() const { return prompting_ ? *prompting_ : training_; }
  /// Implements ready() for `layers`. This is the only place that cuts a micro-batch and makes its step.
  nn::ForwardContext ready(const LayoutLayers& layers, const nn::ForwardContext& micro_batch) const;
  std::vector<nn::ForwardContext> ready(const LayoutLayers& layers,
                                        const std::vector<nn::ForwardContext>& micro_batches) const;
  at::Tensor on_device(const at::Tensor& tensor) const;
  /// `ready` must outlive the returned function. If `norms` is false, `result` gets the states before the norm.
  parallel::StageFunction stage_function(const LayoutLayers& layers, const std::vector<nn::ForwardContext>& ready,
                                         const ResultOf& result, bool norms = true) const;
  /// Runs forward() through `layers` without ending the pass.
  std::vector<at::Tensor> run_forward(const LayoutLayers& layers, const std::vector<nn::ForwardContext>& micro_batches,
                                      const ResultOf& result, bool norms = true) const;
  /// Returns the states that stages send in passes of micro-batches of these sizes; `ready` is the ready() step of the
  /// first one.
  std::vector<parallel::PassedState> passed_states(const LayoutLayers& layers, const nn::ForwardContext& micro_batch,
                                                   const nn::ForwardContext& ready) const;
  /// Returns the result of a pass of one micro-batch through `layers`, on all ranks of the replica.
  at::Tensor everywhere(const LayoutLayers& layers, const nn::ForwardContext& micro_batch, const ResultOf& result,
                        const at::Tensor& like, bool norms = true);
  /// Returns `value`, the result of the last stage, on all ranks of the pipeline; undefined on ranks without it.
  at::Tensor on_all_stages(const LayoutLayers& layers, at::Tensor value, const at::Tensor& like);
  void end_pass() const {
    if (end_of_pass_) end_of_pass_();
  }

  comm::Mesh& mesh_;
  parallel::SequenceConfig sequence_;
  std::string name_;
  std::shared_ptr<nn::Parameters> parameters_;
  std::vector<int64_t> cuts_;
  LayoutLayers training_;
  // Set if training splits tokens over ranks, or if ranks of parallel.expert, which train on other rows, generate the
  // same tokens.
  std::optional<LayoutLayers> decoding_;
  // Set if parallel.sequence splits tokens and tensor.sequence does, too, which needs lengths that divide; also with
  // parallel.expert, as above.
  std::optional<LayoutLayers> prompting_;
  std::function<void()> end_of_pass_;
};

/// Checks the attention heads. Errors ("parallel"): heads that the mode of sequence parallelism cannot split
/// (parallel::check_heads).
void check_heads(const ParallelConfig& config, const models::ModelShape& shape);

/// Checks that each of the `ranks` that share the pairs of a chain (sequence.mode axial) has residues of it. Errors
/// ("parallel"): fewer residues than ranks.
void check_residues(int64_t ranks, int64_t residues);

/// Checks that a mode which switches axes finds two in the model, and that mode axial and a folding model find each
/// other. `name` is that of the model; "" = its architecture's. It does not communicate.
/// Errors ("parallel"): a mode of two axes for a model that attends over one sequence (models::AttentionAxes); mode
///                      axial for a model that folds nothing; another mode, or tensor parallelism, for one that folds.
void check_attention_axes(const ParallelConfig& config, const models::ModelShape& shape, const std::string& name = "");

/// Checks that ranks have whole groups of norms (models::NormGroupSizes). It does not communicate. Errors ("parallel"):
/// a number of ranks that does not divide the groups.
void check_norm_groups(const ParallelConfig& config, const models::ModelShape& shape);

/// Checks the experts of the model (models::MixtureSizes). `name` is that of a further model, which may be dense: its
/// rows are dealt out over "expert" as over "data". It does not communicate. Errors: as parallel::check_experts(),
/// parallel::check_expert_tensor() and parallel::check_expert_node().
void check_experts(const ParallelConfig& config, const models::ModelShape& shape, const std::string& name = "");

}  // namespace colossal::distributed
