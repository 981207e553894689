// T5 (arXiv:1910.10683): an encoder that reads a text, and a decoder that writes the answer and attends to the
// encoder's output. It covers the paper's form (v1.0: ReLU, one table of words for both ends) and T5 v1.1 and Flan-T5
// (gated GELU, an untied head).
//
// A row is the source followed by the answer, [source | answer]. There are two hidden states: `answer`, the first, and
// `source`. An encoder block works on the source. A decoder block works on the answer and reads the source.
// nn::SourceTokens, or the key model.source_tokens, sets the number of source tokens. Padding of a source is a separate
// document. The head gets only the answer.
//
// The encoder can be used alone, to read texts for another model. Its hidden states are the output of its blocks:
//
//   nn::ForwardContext step = nn::step_of(nn::token_batch(ids));
//   step.parts.set(nn::SourceTokens{ids.size(1)});                                // no answer
//   const models::Stage encoder{.last = s.layers - s.own.as<models::T5Sizes>().decoder_layers, .ends = false};
//   const at::Tensor read = models::run_stage(model, encoder, {}, step)[1];       // [B, S, H], normed
#pragma once
#include "colossal/models/families/t5_sizes.h"
#include "colossal/models/registry.h"

namespace colossal::models {

/// Returns the architecture. Dropout applies after the embedding, on each branch and after the norm of each stack.
/// Attention weights and the inside of feed-forward layers have none.
Architecture t5_architecture();

}  // namespace colossal::models
