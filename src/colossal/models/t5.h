// T5 (arXiv:1910.10683): an encoder, which reads a text, and a decoder, which writes the answer and attends to what the
// encoder has made of it. In the form of the paper (v1.0: relu, one table of words for both ends), and as T5 v1.1 and
// Flan-T5 are (gated GELU, a head of its own).
//
// A row is the source with the answer behind it, [source | answer]. The hidden states are two: `answer`, which is the
// first, and `source`. A block of the encoder works on the source, a block of the decoder works on the answer and reads
// the source. Step::source_tokens, or the key model.source_tokens, says how many tokens are the source's. What fills up
// a source is a document of its own. The head is given the answer alone.
//
// The encoder by itself, to read texts for another model: its hidden states are what comes out of its blocks,
//
//   nn::Step step = nn::step_of(nn::token_batch(ids));
//   step.source_tokens = ids.size(1);                                             // no answer
//   const models::Stage encoder{.last = s.layers - s.own.as<models::T5Sizes>().decoder_layers, .ends = false};
//   const at::Tensor read = models::run_stage(model, encoder, {}, step)[1];       // [B, S, H], normed
#pragma once
#include "colossal/models/registry.h"
#include "colossal/models/t5_sizes.h"

namespace colossal::models {

/// Dropout counts behind the embedding, on each branch and behind the norm of each stack; of attention weights and
/// inside feed-forward layers there is none.
Architecture t5_architecture();

}  // namespace colossal::models
