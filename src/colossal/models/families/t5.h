// T5 (arXiv:1910.10683): an encoder that reads a text, and a decoder that writes the answer and attends to the
// encoder's output. It covers the paper's form (v1.0: ReLU, one table of words for both ends) and T5 v1.1 and Flan-T5
// (gated GELU, an untied head).
//
// A row is the source followed by the answer, [source | answer]. There are two hidden states: `answer`, the first, and
// `source`. An encoder block works on the source. A decoder block works on the answer and reads the source.
// nn::SourceTokens, or the key model.source_tokens, sets the number of source tokens. Padding of a source is a separate
// document. The head gets only the answer.
//
// A model of the encoder alone (T5Sizes::encoder_only, the class T5EncoderModel) reads captions for a denoiser:
// models::text_states() gives its hidden states. Of a whole T5 they are the output of its first blocks:
//
//   nn::ForwardContext step = nn::step_of(nn::token_batch(ids));
//   step.parts.set(nn::SourceTokens{ids.size(1)});                                // no answer
//   const models::Stage encoder{.last = s.layers - s.own.as<models::T5Sizes>().decoder_layers, .ends = false};
//   const at::Tensor read = models::run_stage(model, encoder, {}, step)[1];       // [B, S, H], normed
#pragma once
#include <cstdint>
#include <string>

#include "colossal/models/registry.h"

namespace colossal::models {

/// The own keys.
struct T5Sizes {
  int64_t decoder_layers = 0;  ///< decoder layers, the last ones of ModelShape::layers; 0 = half
  int64_t source_tokens = 0;   ///< source tokens of a row if no step sets them; 0 = half
  int64_t start_id = 0;        ///< token id that the decoder reads before an answer, and padding of rows
  /// Number of buckets of relative positions, and the distance from which on all share the last (nn::RelativeBuckets)
  int64_t buckets = 32, max_distance = 128;
  std::string activation = "relu";
  bool gated = false;
  bool scaled_head = true;  ///< whether the head's input is divided by the square root of hidden
  /// Without decoder and head, as a text encoder of a denoiser. It is no key: presets and folders say it
  bool encoder_only = false;
  void fields(Fields& f);
  bool operator==(const T5Sizes&) const = default;
};

/// Returns the reader of the folders of v1.0 and v1.1 (Flan), and of their encoders alone. Our positions are twice a
/// folder's n_positions: that many for source and answer each. They are only a limit of ours, because T5's positions
/// are relative; of an encoder alone they are n_positions. `dropout_rate` is the shape's dropout, and an encoder alone
/// has none.
HuggingFace t5_folder();

}  // namespace colossal::models
