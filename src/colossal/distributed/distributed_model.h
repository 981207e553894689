// A model over the ranks of a mesh: its parameters here, its layers, its stages. What training and inference both stand
// on.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/distributed/config.h"
#include "colossal/models/model.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/paged_cache.h"
#include "colossal/nn/parameter.h"
#include "colossal/parallel/pipeline/executor.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::distributed {

class DistributedModel {
 public:
  /// What a pipeline is planned for.
  struct Workload {
    int64_t micro_batches = 1;  ///< of a training step
    int64_t sequence = 1;       ///< tokens of a sample of text
  };
  /// What goes through the model at once.
  struct Pass {
    /// A micro-batch, the same on all ranks of a replica, or what step.cut says that this one was given of it
    at::Tensor inputs;
    nn::Step step;
  };
  using PassOf = std::function<Pass(int micro_batch)>;
  /// Made of the head's input on the last stage, and of the step that the layers were given: in training a scalar, the
  /// micro-batch's share of the loss.
  using ResultOf = std::function<at::Tensor(int micro_batch, const at::Tensor& hidden, const nn::Step& step)>;

  /// `mesh` has the axes of `config`. Rank r of the pipeline holds the parameters that its stages use.
  /// Collective among all ranks of the mesh; groups are made, nothing is sent.
  /// Errors ("pipeline", "2d", ...): what the model or the schedule cannot be cut into, those of check_heads(); before
  ///                                 anything is communicated.
  DistributedModel(comm::Mesh& mesh, const ParallelConfig& config, const models::ModelShape& shape,
                   nn::Parameters::Options options, const Workload& workload);

  /// Forward and backward of all micro-batches (see parallel::PipelineExecutor::train).
  void train(const PassOf& pass, const ResultOf& loss, const parallel::BeforeGradients& before_gradients);
  /// Forward and backward of one micro-batch outside of any schedule: nothing is timed, and nothing known of it
  /// afterwards, so that it can be recorded (tensor/graph.h). Errors ("pipeline"): a rank that has not all layers.
  void train_one(const Pass& pass, const ResultOf& loss);
  /// Forward alone; what `result` returned, on the ranks of a last stage of pipe 0, and nothing elsewhere. step.cache
  /// is advanced.
  std::vector<at::Tensor> forward(int micro_batches, const PassOf& pass, const ResultOf& result);
  /// Of a pass with one micro-batch through decoding_model(): the result, on all ranks of the replica. `like`: its
  /// sizes and dtype. step.cache is advanced.
  at::Tensor everywhere(const Pass& pass, const ResultOf& result, const at::Tensor& like);

  /// A cache with room for `capacity` tokens of a sequence, for next_logits(): a nn::EncoderDecoderCache of a model
  /// with an encoder; a parallel::SpreadCache where parallel.sequence deals out tokens; else a nn::PagedCache, or a
  /// nn::KvCache of layouts that deal out rows and of devices and dtypes without attention to pages.
  std::unique_ptr<nn::AttentionCache> make_cache(int64_t capacity) const;
  /// A cache for passes of packed sequences [batch_parts, T] through decoding_model(), all rows alike. Where
  /// parallel.sequence deals out tokens, pages of cache_ranks() ranks hold what is one behind another in a sequence.
  /// `dtype`: of what pages hold, as nn::PagedCache.
  std::unique_ptr<nn::PagedCache> make_paged_cache(int64_t pages, int64_t page_tokens,
                                                   std::optional<at::ScalarType> dtype = {}) const;
  /// Logits [V] of what follows the last token of the first row of `pass`, which has a cache, of make_cache(): on all
  /// ranks of the replica. step.cache is advanced.
  ///
  /// Communication: into an empty cache a prompt that has a token for each rank of the sequence goes as in training, by
  ///                the mode; the last hidden state [B, H] is broadcast to these ranks. Everything else goes through
  ///                decoding_model(): see parallel::with_spread_cache. Behind either what head and pipeline send.
  at::Tensor next_logits(const Pass& pass);

  nn::Parameters& parameters() { return *parameters_; }
  models::Model& model() { return training_.model; }
  /// Layers over the same parameters that take sequences of any length: those of model(), unless parallel.sequence or
  /// tensor.sequence deals out tokens to ranks. Then they are of the layout without these, under which each rank has
  /// all tokens, and parallel.sequence shares out the keys and values of a cache alone.
  const models::Model& decoding_model() const { return decoding().model; }
  /// Ranks of a sequence that share the keys and values of a cache.
  int64_t cache_ranks() const { return sequence_.size; }
  /// Of the layers of model(): which tokens of a batch a rank has.
  const parallel::Layout& layout() const { return training_.layout; }
  const parallel::PipelineExecutor& executor() const { return *training_.executor; }
  const std::vector<int64_t>& cuts() const { return cuts_; }

 private:
  /// Layers of one layout, and what runs them.
  struct Runner {
    parallel::Layout layout;
    models::Model model;
    std::unique_ptr<parallel::PipelineExecutor> executor;
  };
  Runner make_runner(parallel::Layout layout, const models::ModelShape& shape, schedule::Schedule schedule);
  const Runner& decoding() const { return decoding_ ? *decoding_ : training_; }
  /// What a pass with an empty cache goes through if its tokens are dealt out.
  const Runner& prompting() const { return prompting_ ? *prompting_ : training_; }
  parallel::StageFunction stage_function(const Runner& runner, const PassOf& pass, const ResultOf& result) const;
  std::vector<at::Tensor> forward(const Runner& runner, int micro_batches, const PassOf& pass,
                                  const ResultOf& result) const;
  /// Of the hidden states [B, S, H] that this rank holds between blocks of such a pass.
  static std::vector<int64_t> hidden_sizes(const Runner& runner, const Pass& pass);
  /// The one result of a pass through `runner`, on all ranks of the replica.
  at::Tensor everywhere(const Runner& runner, const Pass& pass, const ResultOf& result, const at::Tensor& like);

  comm::Mesh& mesh_;
  parallel::SequenceConfig sequence_;
  std::unique_ptr<nn::Parameters> parameters_;
  std::vector<int64_t> cuts_;
  Runner training_;
  std::optional<Runner> decoding_;   // where training deals out tokens
  std::optional<Runner> prompting_;  // where it does so by tensor.sequence, too, which wants lengths that divide
};

/// Errors ("parallel"): attention heads that the mode of parallel sequences cannot deal out (parallel::check_heads).
void check_heads(const ParallelConfig& config, const models::ModelShape& shape);

/// What the parts of a model of `shape` cost, in operations of a training step on one sample of `sequence` tokens.
parallel::ModelCosts model_costs(const models::ModelShape& shape, int64_t sequence);

}  // namespace colossal::distributed
