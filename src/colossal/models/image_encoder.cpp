#include "colossal/models/image_encoder.h"

#include <ATen/ATen.h>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"

namespace colossal::models {

ImageEncoderSizes image_encoder_of(const ModelShape& shape) {
  const auto sizes = shape.part<ImageEncoderSizes>();
  require(sizes.features > 0, "model", "the embedding of a picture needs an encoder of pictures: got ",
          with_article(shape.architecture->name), ", which ", shape.task().purpose());
  return sizes;
}

at::Tensor normed_pixels(const at::Tensor& pixels) {
  const auto of_channels = [&](const double* values) {
    return at::tensor(at::ArrayRef<double>(values, kPictureChannels), at::kDouble)
        .view({1, kPictureChannels, 1, 1})
        .to(pixels.options());
  };
  return (pixels - of_channels(kPixelMeans)) / of_channels(kPixelDeviations);
}

at::Tensor image_embedding(const Model& model, const at::Tensor& pictures) {
  const ImageEncoderSizes sizes = image_encoder_of(model.shape);
  require(pictures.dim() == 4 && pictures.size(1) == kPictureChannels && pictures.size(2) == sizes.side &&
              pictures.size(3) == sizes.side,
          "model", "pictures to encode must be [rows, ", kPictureChannels, ", ", sizes.side, ", ", sizes.side,
          "]: got ", pictures.sizes());
  using tensor::Dim;
  tensor::Batch batch;
  batch.add(kPixelsToEncode, {pictures, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  const Stage all{.first = 0, .last = static_cast<int64_t>(model.blocks.size())};
  return run_stage(model, all, {}, nn::step_of(batch))[0].squeeze(1);
}

}  // namespace colossal::models
