// The pictures that an IP-adapter learns from: each is its own image prompt, as the embedding that an encoder of
// pictures makes of it once (models/image_encoder.h). The latent cache stores it.
//
//   const std::string encoder = key_of_image_encoder({"clip-vision-tiny", 1});
//   cache.picture(prompt_id(pictures.at(i), encoder), /*mirrored=*/false);                  // [features]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "colossal/data/pictures/picture.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"

namespace colossal::run {

/// Returns a picture as an encoder reads it, [3, side, side]: its shorter side becomes `side` pixels, by the bicubic
/// filter of Pillow, the middle is cut out, and the pixels are normed (models::normed_pixels()). It is what
/// CLIPImageProcessor of transformers 5.23 makes of it, to within the rounding of Pillow's filter.
at::Tensor pixels_to_encode(const data::Picture& picture, int64_t side);

/// Does the same with the bytes of a file. Errors ("data"): those of decode_picture().
at::Tensor pixels_to_encode(std::string_view bytes, const std::string& name, int64_t side);

/// Returns what embeddings follow from beside their pictures. Cost: reads the weights of the encoder once.
std::string key_of_image_encoder(const ImageEncoderSource& encoder);

/// Returns what identifies the embedding of a picture in the cache. `encoder`: key_of_image_encoder().
std::string prompt_id(const DrawnPicture& picture, const std::string& encoder);

}  // namespace colossal::run
