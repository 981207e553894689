// STDiT3 of Open-Sora 1.2, the diffusion transformer of clips (arXiv:2412.20404): it predicts the direction from a clip
// to the noise, from the noised clip, the time, the frame rate and the states of a text encoder. Its own keys, and its
// published folder.
//
//   const ModelShape shape = built_in().resolve({.name = "stdit3-tiny"});
//   const at::Tensor predicted = models::predicted_picture(shape, end[0], *step.batch);  // [B, C, frames, h, w]
//
// It is a denoiser (models/denoiser.h) of clips of any sizes; a picture is a clip of one frame. Blocks attend in turn
// among the places of each frame and among the frames of each place. Their hidden state is [B, frames, places, hidden],
// whose places are the patches of a frame, row by row. At the start the temporal blocks add nothing, so each frame is
// drawn as a picture. The model has no head. Its end gives picture - noise, as the published weights do;
// DenoiserSizes::sign makes that the target `flow`.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"

namespace colossal::models {

/// The sizes of an STDiT3. Cells are pixels, or those of a latent. ModelShape::layers counts spatial and temporal
/// blocks.
struct StditSizes {
  int64_t frames = 15, height = 30, width = 53;  ///< of the clips for which the model is made; it takes others, too
  int64_t channels = 4, patch = 2;
  bool spare_outputs = true;  ///< the end has as many channels again, which nobody reads
  int64_t text = 4096;        ///< features of the text states
  int64_t tokens = 300;       ///< tokens of a caption
  int64_t cell = 8;           ///< pixels of a side of a cell, by which positions are scaled
  int64_t base_side = 512;    ///< side in pixels of the square pictures whose positions are not scaled
  void fields(Fields& f);
  bool operator==(const StditSizes&) const = default;
};

/// Returns the published folder: its keys, its names, and the order of features that rotate.
HuggingFace stdit_folder();

}  // namespace colossal::models
