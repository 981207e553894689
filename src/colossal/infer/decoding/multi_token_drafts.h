// Draft tokens of the model's own multi-token layers (models/multi_token.h), for speculative decoding.
//
//   infer::MultiTokenDrafts drafts(model, runner);     // runner.keep_hidden() was called before its steps
//   const at::Tensor logits = runner.logits(scheduler, step);
//   ...                                                // draw tokens, accept and append them
//   const auto drafted = drafts.write(read);           // the tokens of that step that were accepted, by sequence
//
// The layers read the end of the model for each accepted token, and the token after it. Layer k = 0, 1, ... then drafts
// token k of the next ones. Further tokens come from the last layer, which is applied again to its own output and its
// own draft token, one position further each time (DeepSeek-V3, arXiv:2412.19437, section 2.2 and 5.4.3).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/decoding/model_runner.h"
#include "colossal/models/multi_token.h"

namespace colossal::infer {

/// Drafts tokens of the sequences of a step: for each layer the token with the largest logit.
///
/// Cache:         the layers use the pages and blocks of the runner's cache, after the layers of the model. Entries of
///                accepted tokens depend on the tokens after them. A block that sequences share keeps the entries of
///                the sequence that wrote it, so its last ones may belong to another next token. That changes drafts
///                alone: the model evaluates each draft token.
/// Layouts:       all. Only ranks of the last stage compute. All ranks get the same drafts, because the ranks of that
///                stage have the same logits.
/// Communication: DistributedModel::at_end() of sequences x draft tokens int64; per layer or further token that of
///                MultiTokenLayers::forward() and logits().
/// Thread safety: none.
class MultiTokenDrafts {
 public:
  /// Accepted tokens [first, first + count) of a sequence that the model read in its last step.
  struct Sequence {
    int64_t id;
    int64_t place;  ///< index of the first one among the tokens of the step
    int64_t first, count;
    bool wants_drafts = false;      ///< true = one token follows them, and drafts follow that token
    std::vector<int64_t> tokens{};  ///< whole sequence so far, with a token after the accepted ones
    std::vector<int32_t> blocks{};  ///< with room for entries_for() tokens
    int64_t max_draft_tokens = 0;   ///< number of draft tokens wanted; 0 = the layers only read
  };

  /// Returns the number of multi-token layers of the model; 0 = it cannot write drafts.
  static int64_t layers_of(distributed::DistributedModel& model);

  /// `model`, which must have multi-token layers, and its `runner` must outlive it.
  /// Errors ("engine"): a model without multi-token layers.
  MultiTokenDrafts(distributed::DistributedModel& model, ModelRunner& runner);

  /// Returns for how many tokens the blocks of a sequence need room while that many draft tokens are written. With less
  /// room, a draft is shorter by the tokens that lack.
  int64_t entries_for(const Sequence& sequence, int64_t draft_tokens) const;

  /// Returns the draft of each sequence, in the same order: max_draft_tokens tokens. The layers read the accepted
  /// tokens of all sequences, which must be in the order of the step. All ranks of a layout must call it after the same
  /// steps. Errors: errors of the layers.
  std::vector<std::vector<int64_t>> write(const std::vector<Sequence>& sequences);

 private:
  class Pass;

  distributed::DistributedModel& model_;
  ModelRunner& runner_;
  const models::MultiTokenLayers& layers_;
};

}  // namespace colossal::infer
