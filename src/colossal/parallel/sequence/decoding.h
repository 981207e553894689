// Text over ranks that share its cache. A prompt goes through the layers of training, whose mode deals out its tokens;
// each rank keeps the keys and values that it computed. What follows goes through layers that have whole steps on every
// rank, but for attention: a rank looks at the keys that it keeps, and what ranks have found is merged.
//
//   const Layout prompt = with_sequence(make_layout(tensor, mesh), sequence);
//   const Layout decoding = with_spread_cache(make_layout(tensor, mesh), sequence);
//   SpreadCache cache(...);                                       // of step.cache
//   const at::Tensor last = last_token(prompt, hidden, step);     // then a pass of `prompt`, and many of `decoding`
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/parallel/sequence/config.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {

/// `layout`, under which ranks of a sequence have all tokens, with attention that looks at a SpreadCache where a step
/// has a cache; without one it is nn::whole_attention(). A group along the axes of `config` is made.
///
/// Communication: a layer and step of B rows of S tokens: one all_gather among the N ranks of the sequence of results
///                and logarithms of sums (ops::PartialAttention), B S heads (D + 1) numbers of each in fp32 (fp64 for
///                fp64), heads those of a rank: it sends (N - 1) B S heads (D + 1). Whatever the length of the text.
/// Cost:          a query looks at 1 / N of the keys before it. All ranks merge in one order: bitwise equal results.
///                A paged cache shared alike (nn::PagedCache) serves as well, with as many sequences a row as it took.
/// Errors ("parallel"): a cache of whole sequences; documents, several sequences a row of a SpreadCache, or attention
///                      that is not causal, beside a cache.
Layout with_spread_cache(Layout layout, const SequenceConfig& config);

/// hidden [B, S_own, H], what a rank has of a step under `layout` -> [B, H] of the last token, on every rank of the
/// sequence. Communication: where tokens are dealt out, a broadcast of [B, H] by the rank that has it.
at::Tensor last_token(const Layout& layout, const at::Tensor& hidden, const nn::Step& step);

}  // namespace colossal::parallel
