// The embedding of pictures that an adapter of a denoiser reads, computed in one process.
//
//   const at::Tensor embedding = models::image_embedding(model, pixels);   // [B, 3, 224, 224] -> [B, features]
//
// A family sets ImageEncoderSizes in Architecture::settle. Its model reads the field kPixelsToEncode and ends in the
// embedding [B, 1, features]. The caller says whether gradients are recorded (at::NoGradGuard).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

/// The field of the pictures: [B, 3, side, side], normed by kPixelMeans and kPixelDeviations. Dim::Row, then three
/// times Dim::Other.
inline constexpr char kPixelsToEncode[] = "images";

/// The channels of a picture, and what CLIP subtracts from each and divides it by, for pixels in [0, 1].
inline constexpr int64_t kPictureChannels = 3;
inline constexpr double kPixelMeans[] = {0.48145466, 0.4578275, 0.40821073};
inline constexpr double kPixelDeviations[] = {0.26862954, 0.26130258, 0.27577711};

/// Returns the sizes of an encoder of pictures. Errors ("model"): another kind of model.
ImageEncoderSizes image_encoder_of(const ModelShape& shape);

/// Returns pixels in [0, 1], [B, 3, side, side], as the encoder reads them.
at::Tensor normed_pixels(const at::Tensor& pixels);

/// Returns the embeddings [B, features] of pictures [B, 3, side, side], as the field kPixelsToEncode has them, on the
/// device of the model.
/// Errors ("model"): a model that is no encoder of pictures; pictures of other sizes.
at::Tensor image_embedding(const Model& model, const at::Tensor& pictures);

}  // namespace colossal::models
