// Decodes and encodes large pictures in overlapping tiles that are blended, as diffusers does with enable_tiling().
//
//   const at::Tensor pixels = models::decoded_in_tiles(model, parameters, latents);
//   const at::Tensor moments = models::moments_in_tiles(model, parameters, pixels);
//
// It is approximate: norms and the attention at the smallest size see one tile, not the picture. By rows
// (models/autoencoder_kl_rows.h) large pictures are exact in bounded memory.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/parameter.h"
#include "colossal/ops/convolution.h"

namespace colossal::models {

/// Returns true if pictures of that many cells take several tiles. A tile has the height of pictures in training as
/// both sides. One tile is exact.
bool takes_tiles(const AutoencoderSizes& sizes, const ops::PictureSize& cells);

/// Decodes latents [B, C, h, w], each tile as decoded_exactly() does. Tiles share a quarter of their sides with those
/// before them, where pixels go over from one to the other in a straight line. `parameters` are those of the model.
/// Memory: that of a tile, a row of decoded tiles, and the pictures. Errors ("model"): those of decoded().
at::Tensor decoded_in_tiles(const Model& model, const nn::Parameters& parameters, const at::Tensor& latents);
/// Encodes pictures [B, 3, H, W] in the same way, each tile as moments_exactly() does. diffusers blends log-variances
/// before it limits them to [-30, 20], and this function does after it; means are the same.
/// Errors ("model"): those of moments_of().
at::Tensor moments_in_tiles(const Model& model, const nn::Parameters& parameters, const at::Tensor& pixels);

}  // namespace colossal::models
