// The cache of decoding where the ranks of parallel.sequence share it: each keeps the keys and values of some tokens.
//
//   SpreadCache cache(1024, group.rank(), group.size());     // room for 1024 tokens a sequence, on all ranks together
//   nn::Step step{.positions = ..., .cache = &cache};        // a prompt, through layers that deal out its tokens
//   step.positions = ...;                                    // then a token at a time, through decoding layers
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/nn/kv_cache.h"

namespace colossal::parallel {

/// Which tokens of a sequence a rank keeps, and how many each of the others does: every rank plans it alike, without
/// communication.
struct SpreadTokens {
  std::vector<int64_t> counts;          ///< of each rank
  std::vector<nn::KeyPositions> own{};  ///< of this rank, ascending
};

/// Of a step whose tokens are dealt out (nn::Step::cut), a prompt, a rank keeps those that it computed: nothing is
/// sent. Of a step that every rank has whole each token goes to the rank that keeps fewest, the first of these: numbers
/// are even after a few tokens, whatever the prompt's cut was, and the ranks then take turns. A row is one sequence.
///
/// Memory:        a pair [B, most, N_kv, D] a layer, where most = ceil(capacity / ranks), or what the prompt's cut
///                gives this rank if that is more (mode usp); allocated when the layer first appends.
/// Errors ("kv_cache"): no more room; rows of several sequences; another number of rows than before.
/// Thread safety: none.
class SpreadCache final : public nn::AttentionCache {
 public:
  SpreadCache(int64_t capacity, int64_t rank, int64_t ranks)
      : capacity_(capacity), rank_(rank), held_{std::vector<int64_t>(ranks)} {}
  nn::KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const nn::Step& step) override;
  void advance(const nn::Step& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }
  /// What ranks keep of the steps so far.
  const SpreadTokens& held() const { return held_; }

 private:
  int64_t length() const { return lengths_.empty() ? 0 : lengths_.front(); }
  /// What ranks keep with those of a step, and which of its `tokens` this rank does.
  SpreadTokens after(const nn::Step& step, int64_t tokens, std::vector<int64_t>& kept) const;

  int64_t capacity_, rank_;
  SpreadTokens held_;
  std::vector<int64_t> lengths_;
  std::optional<nn::KvCache> own_;  // made with the first step
};

}  // namespace colossal::parallel
