#include "colossal/models/denoiser.h"

#include "colossal/base/error.h"
#include "colossal/models/task.h"
#include "colossal/nn/patches.h"

namespace colossal::models {

DenoiserSizes denoiser_of(const ModelShape& shape) {
  const auto sizes = shape.part<DenoiserSizes>();
  require(sizes.channels > 0, "objective", "diffusion needs a model that predicts the noise of pictures: got one that ",
          shape.task().purpose(), "; name a dit, or leave [diffusion] out");
  return sizes;
}

ops::PictureSize picture_size(const tensor::Batch& batch) {
  const at::Tensor& noised = batch.at("noised");
  require(noised.dim() == 4, "data", "noised must be [B, channels, height, width]: got ", noised.sizes());
  return {noised.size(2), noised.size(3)};
}

at::Tensor predicted_picture(const ModelShape& shape, const at::Tensor& end) {
  const DenoiserSizes sizes = denoiser_of(shape);
  return nn::join_patches(end, {sizes.outputs, sizes.height, sizes.width, sizes.patch, /*class_tokens=*/0});
}

at::Tensor predicted_picture(const ModelShape& shape, const at::Tensor& end, const tensor::Batch& batch) {
  const DenoiserSizes sizes = denoiser_of(shape);
  const ops::PictureSize size = picture_size(batch);
  return nn::join_patches(end, {sizes.outputs, size.height, size.width, sizes.patch, /*class_tokens=*/0});
}

}  // namespace colossal::models
