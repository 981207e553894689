// The vision transformer of CLIP (arXiv:2103.00020), which reads a picture for an adapter of a denoiser
// (models/unet_image_prompt.h).
//
//   const ModelShape shape = built_in().resolve({.name = "clip-vision-tiny"});
//   const at::Tensor embedding = image_embedding(model, pixels);     // models/image_encoder.h: [B, projection]
//
// Patches without a bias behind a class token, learned positions, a norm before the blocks, and blocks with norms in
// front of their branches, in which all tokens attend to each other. The norm at the end reads the class token alone,
// whose projection is what the model ends in. The model has no head.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

struct ClipVisionSizes {
  int64_t side = 224, patch = 14;   ///< of the square pictures and of their square patches, in pixels
  int64_t projection = 0;           ///< features of the projection
  std::string activation = "gelu";  ///< inside the feed-forward layers: gelu (OpenCLIP), or quick_gelu
  int64_t patches() const { return (side / patch) * (side / patch); }
  void fields(Fields& f);
  bool operator==(const ClipVisionSizes&) const = default;
};

}  // namespace colossal::models
