// Runs one request at a time, with a cache of the size that it needs.
//
//   infer::LoneRunner runner(model);
//   infer::Scheduler scheduler(LoneRunner::scheduling(runner.shape()));
//   runner.begin(id, text, max_new_tokens);
//   scheduler.add(id, text, max_new_tokens - 1);
//   const at::Tensor logits = runner.logits(scheduler, scheduler.next());   // [1, V]
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/decoding/step_runner.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/token_memory.h"

namespace colossal::infer {

/// Runs requests one at a time.
///
/// Models:        all that generate text. A model with an encoder reads the prompt once with the encoder; its text is
///                the prompt, Request::prompt_end and the decoder's start token.
/// Layouts:       all. Ranks of parallel.sequence split the activations of a prompt, and the cache.
/// Positions:     all of the model's, even if rotary frequencies depend on the length of the sequence.
/// Communication: DistributedModel::next_logits() for the text, then once per token.
/// Cost:          one pass over the text, then one pass over the weights per token. The cache has room for the text and
///                max_tokens.
class LoneRunner final : public StepRunner {
 public:
  /// `model` must outlive the runner.
  /// Errors ("generate"): a model that does not generate text. Errors of models::head_of().
  explicit LoneRunner(distributed::DistributedModel& model);

  /// Returns the options that have no effect on a request that runs alone: options of the batching engine and of its
  /// cache.
  static std::vector<std::string> unused_options();

  /// Returns options for a scheduler that runs one request at a time and its whole text in one step.
  static SchedulerOptions scheduling(const models::ModelShape& shape);

  const models::ModelShape& shape() const override { return model_.decoding_model().shape; }
  int64_t longest() const override { return shape().positions; }
  std::vector<int64_t> text_of(const Request& request) const override;
  std::vector<std::string> unused() const override { return unused_options(); }
  std::string name() const override;
  void begin(int64_t id, const std::vector<int64_t>& text, int64_t max_new_tokens,
             int64_t adapter = nn::kBase) override;
  void end(int64_t id) override;
  /// Errors: errors of the forward pass.
  at::Tensor logits(const Scheduler& scheduler, const std::vector<Scheduler::ScheduledTokens>& step) override;

 private:
  struct Text {
    int64_t source;    // number of tokens that the encoder reads, which the cache does not hold
    int64_t capacity;  // number of tokens that the cache has room for
    int64_t adapter;
    std::unique_ptr<nn::AttentionCache> cache{};
    nn::TokenMemory memory{/*taken_back=*/0};
  };

  distributed::DistributedModel& model_;
  bool has_encoder_;
  std::map<int64_t, Text> texts_;  // only the running request has a cache
};

}  // namespace colossal::infer
