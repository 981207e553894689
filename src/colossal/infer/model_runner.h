// Runs the steps of a Scheduler through a model: packed rows [1, T] of unequal sequences, with a paged cache.
//
//   infer::ModelRunner runner(model, {.blocks = scheduler.pool().blocks(), .block_tokens = 64}, nullptr);
//   const auto step = scheduler.next();
//   const at::Tensor logits = runner.logits(scheduler, step);    // a row for each place where a token is wanted
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/runner.h"
#include "colossal/nn/paged_cache.h"

namespace colossal::infer {

/// Layouts:       all of them. Layouts that split rows get copies of the packed row, and each of their parts computes
///                the same. With parallel.sequence the ranks share keys and values, a page of each block on each rank;
///                every rank computes everything else of a step.
/// Communication: a forward pass of the model (DistributedModel::everywhere).
/// Numbers:       with packed weights (nn::PrepackedLayers) and our kernel of attention (ops::has_paged_attention) a
///                sequence's logits are the same bits whatever else is in the step; otherwise products of LibTorch may
///                differ in the last bits.
/// Thread safety: none.
class ModelRunner final : public Runner {
 public:
  struct Cache {
    int64_t blocks, block_tokens;           ///< block_tokens: that a rank has of a block
    std::optional<at::ScalarType> dtype{};  ///< int8 or e4m3, codes of 8 bits (ops/row_codes.h); none: the model's
  };
  /// Returns the bytes of keys and values of a token in all layers of a rank, at most: each stage of a pipeline has
  /// some of them.
  static int64_t bytes_of_token(distributed::DistributedModel& model, std::optional<at::ScalarType> dtype = {});

  /// Errors ("engine"): a model that continues no text. Errors of models::head_of().
  ModelRunner(distributed::DistributedModel& model, const Cache& cache);

  const models::ModelShape& shape() const override { return model_.decoding_model().shape; }
  /// Where rotary frequencies depend on the length of a text, those before they do: with longer texts a token would
  /// depend on the requests beside it in a step, and on the chunks of its prompt.
  int64_t longest() const override;
  std::vector<std::string> unused() const override { return {}; }
  std::string name() const override { return "the batching engine"; }
  void begin(int64_t, const std::vector<int64_t>&, int64_t) override {}
  void end(int64_t) override {}
  /// Errors: those of the pass.
  at::Tensor logits(const Scheduler& scheduler, const std::vector<Scheduler::Run>& step) override;

 private:
  distributed::DistributedModel& model_;
  std::unique_ptr<nn::PagedCache> cache_;
};

}  // namespace colossal::infer
