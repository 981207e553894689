// A cache for decoding that the ranks of parallel.sequence share: each rank keeps the keys and values of some tokens.
//
//   SpreadCache cache(1024, group.rank(), group.size());     // room for 1024 tokens a sequence, on all ranks together
//   nn::ForwardContext step{.positions = ..., .cache = &cache};  // a prompt, through layers that split its tokens
//   step.positions = ...;                                    // then a token at a time, through decoding layers
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"

namespace colossal::parallel {

/// The tokens of a sequence that a rank keeps, and the number of tokens of every rank. Every rank makes the same plan,
/// without communication.
struct SpreadTokens {
  std::vector<int64_t> counts;          ///< number of tokens of each rank
  std::vector<nn::KeyPositions> own{};  ///< positions of this rank's tokens, ascending
};

/// In a step whose tokens are split (nn::ForwardContext::cut), i.e. a prompt, a rank keeps the tokens that it computed,
/// and nothing is sent. In a step that every rank has whole, each token is assigned to the rank with the fewest tokens,
/// the first such rank. After a few tokens the numbers are equal, whatever the prompt's cut was, and the
/// ranks then take turns. A row is one sequence.
///
/// Memory:        a pair [B, most, N_kv, D] per layer, where most = ceil(capacity / ranks), or this rank's number of
///                tokens in the first step's cut if that is larger (mode usp). Allocated when the layer first appends.
/// Errors ("kv_cache"): no space left; rows of several sequences; another number of rows than before.
/// Thread safety: none.
class SpreadCache final : public nn::AttentionCache {
 public:
  SpreadCache(int64_t capacity, int64_t rank, int64_t ranks)
      : capacity_(capacity), rank_(rank), held_{std::vector<int64_t>(ranks)} {}
  nn::KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v,
                        const nn::ForwardContext& step) override;
  void advance(const nn::ForwardContext& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }
  /// Returns the tokens that the ranks keep after the steps so far.
  const SpreadTokens& held() const { return held_; }

 private:
  int64_t length() const { return lengths_.empty() ? 0 : lengths_.front(); }
  /// Returns the tokens that the ranks keep including those of a step, and in `kept` the step's tokens that this rank
  /// keeps.
  SpreadTokens after(const nn::ForwardContext& step, int64_t tokens, std::vector<int64_t>& kept) const;

  int64_t capacity_, rank_;
  SpreadTokens held_;
  std::vector<int64_t> lengths_;
  std::optional<nn::KvCache> own_;  // cache of this rank, made with the first step
};

}  // namespace colossal::parallel
