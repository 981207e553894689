// Text generation over ranks that share its cache. A prompt passes through the layers of training, whose mode splits
// its tokens; each rank keeps the keys and values that it computed. Later tokens pass through layers that have whole
// steps on every rank, except in attention: a rank attends to the keys that it keeps, and the results of the ranks are
// merged.
//
//   const Layout prompt = with_sequence(make_layout(tensor, mesh), sequence);
//   const Layout decoding = with_spread_cache(make_layout(tensor, mesh), sequence);
//   SpreadCache cache(...);                                       // nn::Decoding holds it
//   const at::Tensor last = last_token(prompt, hidden, step);     // then a pass of `prompt`, and many of `decoding`
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// The tokens of a sequence that a rank keeps, and the number of tokens of every rank. Every rank makes the same plan,
/// without communication.
struct SpreadTokens {
  std::vector<int64_t> counts;          ///< number of tokens of each rank
  std::vector<nn::KeyPositions> own{};  ///< positions of this rank's tokens, ascending
};

/// A cache for decoding that the ranks of parallel.sequence share: each rank keeps the keys and values of some tokens.
///
///   SpreadCache cache(1024, group.rank(), group.size());     // room for 1024 tokens a sequence, on all ranks together
///   nn::ForwardContext step{.positions = ..., .cache = &cache};  // a prompt, through layers that split its tokens
///   step.positions = ...;                                    // then a token at a time, through decoding layers
///
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

/// Returns `layout`, under which ranks of a sequence have all tokens, with attention that reads a SpreadCache if a
/// step has a cache. Without a cache attention is nn::whole_attention(). Makes a group along the axes of `config`. If
/// config.size is 1, returns `layout` unchanged.
///
/// Communication: a layer and step of B rows of S tokens make one all_gather among the N ranks of the
///                sequence. It carries results and logarithms of sums (ops::PartialAttention), B S heads (D + 1)
///                elements per rank in fp32 (fp64 for fp64), where heads are those of a rank. A rank sends (N - 1) B S
///                heads (D + 1), independent of the length of the text.
/// Cost:          a query reads 1 / N of the keys before it. All ranks merge in one order, with bitwise equal results.
///                A paged cache that is shared in the same way (nn::PagedCache) works as well; its rows may hold
///                several sequences.
/// Errors ("parallel"): a cache of whole sequences. With a cache also: documents, several sequences per row of a
///                      SpreadCache, or attention that is not causal.
Layout with_spread_cache(Layout layout, const SequenceConfig& config);

/// Converts hidden [B, S_own, H], this rank's tokens of a step under `layout`, to [B, H] of the last token, on every
/// rank of the sequence. Communication: if tokens are split, the rank that has the last token broadcasts [B, H].
at::Tensor last_token(const Layout& layout, const at::Tensor& hidden, const nn::ForwardContext& step);

}  // namespace colossal::parallel
