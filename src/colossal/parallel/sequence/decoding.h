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

#include "colossal/nn/forward_context.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

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
