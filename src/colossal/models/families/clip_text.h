// The text transformer of CLIP (arXiv:2103.00020), which reads a caption for a denoiser of pictures: its own keys, and
// its parts for larger models.
//
//   const ModelShape shape = built_in().resolve({.name = "clip-text-tiny"});
//   const at::Tensor states = text_states(model, ids);                     // models/text_encoder.h: [B, T, hidden]
//
// Blocks with norms in front of their branches and a causal mask, learned positions, a norm at the end. Padding is not
// masked, as in CLIP: each token reads all tokens before it, and pads follow the caption. The model writes no text and
// has no head. Of a model with a projection, state 1 at its end is the projection of the tokens.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

struct ClipTextSizes {
  std::string activation = "quick_gelu";  ///< inside the feed-forward layers: quick_gelu, or gelu (OpenCLIP)
  int64_t projection = 0;                 ///< features of the projection of pooled states; 0 = none
  int64_t end_id = 49407;  ///< the first token of this id is pooled; 2 = the token of the largest id is (old folders)
  void fields(Fields& f);
  bool operator==(const ClipTextSizes&) const = default;
};

/// Where the parts of a text encoder stand in a model: the names of their parameters.
struct ClipTextPlace {
  std::string outside{};      ///< prefix of `embedding` and `positions`
  int64_t first_block = 0;    ///< number of the model's block that is the encoder's first
  std::string norm = "norm";  ///< name of the last norm; empty = there is none
  std::string ids = "ids";    ///< field that the embedding reads
};

/// The parts of a text encoder without its projection. Each reads and writes the hidden state [B, T, hidden].
struct ClipTextParts {
  Embed::OfOne embed;  ///< reads the field ClipTextPlace::ids [B, T] and the positions of the step
  std::vector<Block::OfOne> blocks;
  Block::OfOne norm;
};

/// Makes ClipTextParts::embed, of which the parameters are outside of blocks.
Embed::OfOne make_clip_text_embedding(const ModelShape& shape, const ClipTextPlace& place, nn::Layers& layers);
/// Makes the blocks, and the norm if it has a name.
ClipTextParts make_clip_text_blocks(const ModelShape& shape, const ClipTextPlace& place, nn::Layers& layers);

/// Makes the parts of a text encoder of `shape`, a clip_text. In a larger model its caller lets them write a state of
/// that model: the encoder is its first blocks, and the last of these applies the norm, which has the name of its
/// block:
///
///   const ClipTextParts text = make_clip_text(shape, {"text.", 0, "blocks.11.norm"}, layers);
///
ClipTextParts make_clip_text(const ModelShape& shape, const ClipTextPlace& place, nn::Layers& layers);

}  // namespace colossal::models
