// Models that predict the noise of pictures: what an objective and a sampler need to know of them.
//
//   const models::DenoiserSizes sizes = models::denoiser_of(shape);
//   const at::Tensor predicted = models::predicted_picture(shape, end[0]);      // [B, outputs, height, width]
//
// A family sets DenoiserSizes in Architecture::settle. Its model reads these fields:
//
//   noised   the noised picture or latent [B, C, height, width]: Dim::Row, then three times Dim::Other; converted to
//            the dtype of the model
//   times    the noise level of each row, as the model shall see it [B] (0 to 999 of 1,000 levels; of a flow 1,000 t)
//   classes  the class of each row [B]; the index `classes` is the null class, which samples put in place of a dropped
//            label
//
// end[0] is the whole prediction on every rank of the last stage, in patches and in fp32 at least (nn::Outputs), also
// in layouts that split features or tokens. So each rank computes the loss of all rows of the micro-batch.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/shape.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

/// Returns the sizes of a model that predicts the noise of pictures. Errors ("objective"): another kind of model.
DenoiserSizes denoiser_of(const ModelShape& shape);

/// Returns the prediction as a picture, [B, outputs, height, width], from the end of the model, [B, patches, patch *
/// patch * outputs]. Errors ("model"): an end of other sizes.
at::Tensor predicted_picture(const ModelShape& shape, const at::Tensor& end);

}  // namespace colossal::models
