// What the rows of a drawing are told: the captions that guidance leads to and away from.
//
//   const ToldCaptions told = read_captions(source, parts, {.prompt = "a red circle moves left", .fps = 8});
//   const Drawing drawing{.told = told.told, .untold = told.untold, .seeds = {1}, .guidance = 7};
#pragma once
#include <cstdint>
#include <string>

#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/tensor/batch.h"

namespace colossal::diffusion {

/// The rate of a clip whose rate nobody names, in frames a second.
inline constexpr double kDefaultRate = 24;

struct CaptionsToRead {
  std::string prompt{}, negative{};  ///< negative: what guidance leads away from
  int64_t clip_skip = 0;             ///< last blocks of the text encoder that are left out
  bool is_guided = true;             ///< false = nothing is read for guidance to lead away from
  double fps = 0;                    ///< of a clip; 0 = kDefaultRate
  int64_t frames = 0;                ///< of a clip; a single one is told run::kPictureRate, as in training
};

/// The fields of Drawing with these names, in one row each.
struct ToldCaptions {
  tensor::Batch told{}, untold{};
};

/// Reads the captions of a drawing. A model with a null text of its own (DenoiserSizes::masks_text) is told that in
/// place of an empty negative caption. A model that reads the frame rate is told it. Requires: the pipeline reads text.
/// Errors: those of PipelineParts::told().
ToldCaptions read_captions(const run::PipelineSource& source, PipelineParts& parts, const CaptionsToRead& captions);

/// Tells both passes the embedding of a picture [1, features] that the drawing shall resemble: the second one zeros.
void tell_embedding(const at::Tensor& embedding, tensor::Batch& told, tensor::Batch& untold);

}  // namespace colossal::diffusion
