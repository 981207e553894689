// Runs the steps of a Scheduler through a model: packed rows [1, T] of sequences of different lengths, with a paged
// cache.
//
//   infer::ModelRunner runner(model, {.blocks = scheduler.pool().blocks(), .block_tokens = 64}, nullptr);
//   const auto step = scheduler.next();
//   const at::Tensor logits = runner.logits(scheduler, step);    // a row for each place where a token is wanted
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/decoding/step_runner.h"
#include "colossal/nn/paged_cache.h"
#include "colossal/nn/token_memory.h"

namespace colossal::infer {

/// Runs the sequences of a step as one packed row.
///
/// Layouts:       all. Layouts that split the batch get copies of the packed row, and each part computes the same
///                values. Ranks of parallel.sequence split keys and values, one page of each block per rank; every rank
///                computes everything else of a step.
/// Communication: one forward pass of the model (DistributedModel::everywhere).
/// Numerics:      with packed weights (nn::PackedWeights) and our attention kernel (ops::has_paged_attention) a
///                sequence's logits are bitwise the same for any other sequences in the step, and for any adapters of
///                these. Otherwise LibTorch's
///                matrix products may differ in the last bits.
/// Thread safety: none.
class ModelRunner final : public StepRunner {
 public:
  struct Cache {
    int64_t blocks, block_tokens;  ///< number of blocks; tokens that a rank stores of a block
    /// 8-bit quantized: int8 or e4m3 (ops/products/row_codes.h); none = model dtype
    std::optional<at::ScalarType> dtype{};
    int64_t draft_tokens = 0;  ///< number of tokens by which a sequence may step back, because drafts were refused
  };
  /// Returns the bytes of keys and values per token for all layers of a rank. This is an upper bound, because each
  /// stage of a pipeline stores only some layers. `more_layers` = layers in addition to the blocks of the model.
  static int64_t bytes_of_token(distributed::DistributedModel& model, std::optional<at::ScalarType> dtype = {},
                                int64_t more_layers = 0);

  /// `model` must outlive the runner.
  /// Errors ("engine"): a model that neither predicts the next token nor scores texts. Errors of models::head_of().
  ModelRunner(distributed::DistributedModel& model, const Cache& cache);

  const models::ModelShape& shape() const override { return model_.decoding_model().shape; }
  int64_t longest() const override { return shape().positions; }
  /// Returns the number of positions up to which the result for a token does not depend on the length of its text.
  int64_t even_longest() const;
  std::vector<std::string> unused() const override { return {}; }
  std::string name() const override { return "the batching engine"; }
  std::string cache_key(const Request& request, int64_t text_tokens, int64_t max_new_tokens) const override;
  void begin(int64_t id, const std::vector<int64_t>& text, int64_t max_new_tokens,
             int64_t adapter = nn::kBase) override;
  void end(int64_t id) override;
  bool remembers_tokens() const override { return memory_.has_value(); }
  /// Errors: errors of the forward pass.
  /// If rotary frequencies depend on the length of a text, those of a request follow its reach: the number of tokens
  /// that it may have at most. They stay the same while it grows. Without begin() they follow its tokens so far.
  at::Tensor logits(const Scheduler& scheduler, const std::vector<Scheduler::ScheduledTokens>& step) override;

  /// Returns false for layouts that divide hidden states between ranks.
  bool has_states() const override { return !model_.divides_states(); }
  at::Tensor states() override;

  /// Lets logits() keep the hidden states of its last step, for MultiTokenDrafts.
  void keep_hidden() { keeps_hidden_ = true; }
  /// Returns this rank's part of the end of the model for all tokens of the last step, proposed ones included:
  /// [B, T, H] on ranks of the last stage, else undefined.
  const at::Tensor& hidden() const { return hidden_; }
  /// Returns the cache. Steps set its sequences.
  nn::PagedCache& cache() { return *cache_; }

 private:
  int64_t reach_of(int64_t text_tokens, int64_t max_new_tokens) const;

  distributed::DistributedModel& model_;
  std::unique_ptr<nn::PagedCache> cache_;
  std::optional<nn::TokenMemory> memory_;  // none = no layer remembers tokens
  std::map<int64_t, int64_t> reaches_;     // by request, if frequencies depend on the length of a text
  std::map<int64_t, int64_t> adapters_;    // by request, of those that do not use the base
  bool keeps_hidden_ = false;
  at::Tensor hidden_{};
  std::vector<int64_t> pooled_;  // places in the last step's row of the scored tokens of pooled requests
};

}  // namespace colossal::infer
