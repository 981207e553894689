// A model over the ranks of a mesh: the parameters, layers and stages of this rank, for training and inference.
//
//   std::vector<nn::Step> micro_batches;
//   for (int64_t i = 0; i < 4; ++i) micro_batches.push_back(nn::step_of(batch.part(i * rows, rows)));
//   const auto results = model.forward(micro_batches, [&](int, const models::States& end, const nn::Step& step) {
//     return models::loss_sum(model.model(), end[0], step);
//   });
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
#include "colossal/nn/paged_cache.h"
#include "colossal/nn/parameter.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/tensor/batch.h"

namespace colossal::distributed {

class DistributedModel {
 public:
  /// What a pipeline is planned for.
  struct Workload {
    int64_t micro_batches = 1;  ///< number of micro-batches of a training step
    /// Returns the costs of a sample, by which the blocks are cut into stages. Null: the costs of one token
    std::function<models::Costs()> costs{};
  };
  /// Makes a result on the last stage: of the states that the model's norm reads or writes, where end[0] is the input
  /// of the head, and of the step that the layers were given, ready(). In training a scalar, the micro-batch's share of
  /// the loss.
  using ResultOf = std::function<at::Tensor(int micro_batch, const models::States& end, const nn::Step& step)>;

  /// `mesh` has the axes of `config`. Rank r of the pipeline holds the parameters that its stages use.
  /// `shared`: the parameters of other models on this mesh, to which this model adds its own as options.model
  /// (nn::Parameters::begin_model); null: parameters of its own.
  /// Collective among all ranks of the mesh; groups are made, nothing is sent.
  /// Errors ("pipeline", "2d", ...): what the model or the schedule cannot be cut into, those of check_heads(); before
  ///                                 anything is communicated.
  DistributedModel(comm::Mesh& mesh, const ParallelConfig& config, const models::ModelShape& shape,
                   nn::Parameters::Options options, const Workload& workload,
                   std::shared_ptr<nn::Parameters> shared = nullptr);

  /// Sets the function that ends a pass without gradients. The owner of the parameters' memory sets it, such as
  /// train::Optimization or run::StreamedWeights, and may move them away then. forward(), everywhere() and
  /// next_logits() call it when they have their results, on every rank that takes part in the pass; its errors are
  /// theirs. Null: nothing.
  void set_end_of_pass(std::function<void()> end) { end_of_pass_ = std::move(end); }

  // A pass is given the step of each micro-batch (nn::step_of), whole and the same on all ranks of a replica. All
  // micro-batches of a call have the same sizes.
  // Errors of all passes, before any communication: "data", a field that the model reads and the batch does not have;
  // "model", a step without a batch; "parallel", a batch that does not divide (parallel::Layout::with_cut).

  /// Forward and backward of all micro-batches (see parallel::PipelineExecutor::train). The pass ends when the caller
  /// has reduced the gradients.
  void train(const std::vector<nn::Step>& micro_batches, const ResultOf& loss,
             const parallel::BeforeGradients& before_gradients);
  /// Forward and backward of one micro-batch outside of any schedule: nothing is timed, and nothing known of it
  /// afterwards, so that it can be recorded (tensor/graph.h). Errors ("pipeline"): a rank that has not all layers.
  void train_one(const nn::Step& micro_batch, const ResultOf& loss);
  /// Forward alone; what `result` returned, on the ranks of a last stage of pipe 0, and nothing elsewhere. step.cache
  /// is advanced.
  std::vector<at::Tensor> forward(const std::vector<nn::Step>& micro_batches, const ResultOf& result);
  /// Of a pass with one micro-batch through decoding_model(): the result, on all ranks of the replica. `like`: its
  /// sizes and dtype. step.cache is advanced.
  at::Tensor everywhere(const nn::Step& micro_batch, const ResultOf& result, const at::Tensor& like);

  /// Returns the step that the layers of model() are given: with the cut of its tokens, and with a batch on the device
  /// whose fields have the tokens that this rank reads. Passes call it for each micro-batch. Cost: copies to the device
  /// of fields that are elsewhere; the host does not wait for copies of pinned memory.
  nn::Step ready(const nn::Step& micro_batch) const { return ready(training_, micro_batch); }
  /// Returns true if ready() takes a part of the tokens of such a batch: ranks split sequences, and a field has a
  /// dimension tensor::Dim::Token.
  bool cuts_tokens(const tensor::Batch& batch) const;
  /// The tokens that ready() takes of rows of `tokens` tokens if no documents are given, in order; runs that touch are
  /// one. Empty: all.
  std::vector<tensor::TokenRun> tokens_read(int64_t tokens) const;
  /// The batch on the device, except fields that stay whole, which are on the host.
  tensor::Batch on_device(const tensor::Batch& batch) const;

  /// A cache with room for `capacity` tokens of a sequence, for next_logits(): a nn::EncoderDecoderCache of a model
  /// with an encoder; a parallel::SpreadCache where parallel.sequence deals out tokens; else a nn::PagedCache, or a
  /// nn::KvCache of layouts that deal out rows and of devices and dtypes without attention to pages.
  std::unique_ptr<nn::AttentionCache> make_cache(int64_t capacity) const;
  /// A cache for passes of packed sequences [batch_parts, T] through decoding_model(), all rows alike. Where
  /// parallel.sequence deals out tokens, pages of cache_ranks() ranks hold what is one behind another in a sequence.
  /// `dtype`: of what pages hold, as nn::PagedCache.
  std::unique_ptr<nn::PagedCache> make_paged_cache(int64_t pages, int64_t page_tokens,
                                                   std::optional<at::ScalarType> dtype = {}) const;
  /// Logits [V] of what follows the last token of the first row of the batch of `step`, which has a cache, of
  /// make_cache(): on all ranks of the replica. step.cache is advanced.
  ///
  /// Communication: into an empty cache a prompt that has a token for each rank of the sequence goes as in training, by
  ///                the mode; the last hidden state [B, H] is broadcast to these ranks. Everything else goes through
  ///                decoding_model(): see parallel::with_spread_cache. Behind either what head and pipeline send.
  /// Errors:        models::head_of(), before any communication.
  at::Tensor next_logits(const nn::Step& step);

  /// The parameters of this model and of those that share them.
  nn::Parameters& parameters() { return *parameters_; }
  /// The same, for another model that shares them.
  const std::shared_ptr<nn::Parameters>& shared_parameters() const { return parameters_; }
  /// nn::Parameters::Options::model.
  const std::string& name() const { return name_; }
  models::Model& model() { return training_.model; }
  /// Layers over the same parameters that take sequences of any length: those of model(), unless parallel.sequence or
  /// tensor.sequence deals out tokens to ranks. Then they are of the layout without these, under which each rank has
  /// all tokens, and parallel.sequence shares out the keys and values of a cache alone.
  const models::Model& decoding_model() const { return decoding().model; }
  /// Ranks of a sequence that share the keys and values of a cache.
  int64_t cache_ranks() const { return sequence_.size; }
  /// The layout of the layers of model(): which tokens of a batch a rank has.
  const parallel::Layout& layout() const { return training_.layout; }
  const parallel::PipelineExecutor& executor() const { return *training_.executor; }
  const std::vector<int64_t>& cuts() const { return cuts_; }

 private:
  /// Layers of one layout, and what runs them.
  struct Runner {
    parallel::Layout layout;
    models::Model model;
    std::vector<models::StateTransfer> transfers{};
    int first_trained = 0;  // stage
    std::unique_ptr<parallel::PipelineExecutor> executor;
  };
  Runner make_runner(parallel::Layout layout, const models::ModelShape& shape, schedule::Schedule schedule);
  /// The first stage that uses a trained parameter, the same on all ranks; the number of stages if none is trained.
  int first_trained_stage(const models::ModelShape& shape) const;
  const Runner& decoding() const { return decoding_ ? *decoding_ : training_; }
  /// The runner of a prompt whose tokens ranks share.
  const Runner& prompting() const { return prompting_ ? *prompting_ : training_; }
  /// ready(), for the layers of `runner`: the one place that cuts a micro-batch and makes its step.
  nn::Step ready(const Runner& runner, const nn::Step& micro_batch) const;
  std::vector<nn::Step> ready(const Runner& runner, const std::vector<nn::Step>& micro_batches) const;
  at::Tensor on_device(const at::Tensor& tensor) const;
  /// `ready`: steps that outlive the function.
  parallel::StageFunction stage_function(const Runner& runner, const std::vector<nn::Step>& ready,
                                         const ResultOf& result) const;
  /// forward() through `runner`; the pass has not ended.
  std::vector<at::Tensor> run_forward(const Runner& runner, const std::vector<nn::Step>& micro_batches,
                                      const ResultOf& result) const;
  /// What stages hand on in passes of micro-batches of these sizes; `ready`: of the first one.
  std::vector<parallel::PassedState> passed_states(const Runner& runner, const nn::Step& micro_batch,
                                                   const nn::Step& ready) const;
  /// The one result of a pass through `runner`, on all ranks of the replica.
  at::Tensor everywhere(const Runner& runner, const nn::Step& micro_batch, const ResultOf& result,
                        const at::Tensor& like);
  void end_pass() const {
    if (end_of_pass_) end_of_pass_();
  }

  comm::Mesh& mesh_;
  parallel::SequenceConfig sequence_;
  std::string name_;
  std::shared_ptr<nn::Parameters> parameters_;
  std::vector<int64_t> cuts_;
  Runner training_;
  std::optional<Runner> decoding_;   // where training deals out tokens
  std::optional<Runner> prompting_;  // where it does so by tensor.sequence, too, which wants lengths that divide
  std::function<void()> end_of_pass_;
};

/// Errors ("parallel"): attention heads that the mode of parallel sequences cannot deal out (parallel::check_heads).
void check_heads(const ParallelConfig& config, const models::ModelShape& shape);

}  // namespace colossal::distributed
