// A text encoder with words that a run learns (textual inversion, arXiv:2208.01618): further rows of its table, with
// the ids after its vocabulary. The encoder itself stays as it is.
//
//   const ModelShape encoder = models::with_learned_words(clip, 2);      // reads ids below vocabulary + 2
//
// The rows are a parameter of their own, which folders do not have (nn::Parameter::is_added): "learned.weight", or
// "text.learned.weight" and of a second encoder "text_2.learned.weight" within a denoiser (models/clip_text_within.h).
#pragma once
#include <cstdint>
#include <string>

#include "colossal/models/shape.h"

namespace colossal::models {

/// Returns the shape with that many learned rows; 0 = none. Errors ("model"): another model than a clip_text.
ModelShape with_learned_words(ModelShape text, int64_t rows);

/// Returns the number of learned rows of a text encoder, or of the one within a denoiser.
int64_t learned_rows(const ModelShape& shape);

/// Returns true for the name of the parameter of the rows, within its model.
bool is_learned_words(const std::string& name);

}  // namespace colossal::models
