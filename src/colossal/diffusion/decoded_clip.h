// Turns what a model of clips drew into frames, one after another, so that memory does not grow with their number.
//
//   decode_clip(parts, mesh, {.clip = drawn, .frames = 51}, [&](const data::Picture& frame) { file.add(frame); });
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "colossal/comm/mesh.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/diffusion/pipeline_parts.h"

namespace colossal::diffusion {

struct ClipToDecode {
  at::Tensor clip{};      ///< [1, C, t, h, w] as the model drew it
  int64_t frames = 0;     ///< frames that are shown (ClipLength::frames)
  bool in_tiles = false;  ///< true = an autoencoder of pictures decodes each frame in tiles (PipelineParts::pixels())
  int64_t seed = 0;       ///< for DecodingFailed
};

/// Decodes a clip and calls `take` for its frames in order, on rank 0 of the mesh.
/// Memory:        a frame, or a chunk of an autoencoder of clips (models/autoencoder_clips.h).
/// Communication: an autoencoder of pictures decodes frame by frame, whose rows all ranks of the mesh share
///                (PipelineParts::pixels()). One of clips decodes on rank 0. Then all ranks agree on errors. All of
///                them must call it with the same clip.
/// Errors, on all ranks: DecodingFailed; those of `take`.
void decode_clip(const PipelineParts& parts, comm::Mesh& mesh, const ClipToDecode& what,
                 const std::function<void(const data::Picture&)>& take);

}  // namespace colossal::diffusion
