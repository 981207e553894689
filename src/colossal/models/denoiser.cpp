#include "colossal/models/denoiser.h"

#include <ATen/ATen.h>

#include <vector>

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

tensor::Batch example_noised(const ModelShape& shape, int64_t rows) {
  using tensor::Dim;
  constexpr int64_t kTokens = 77;
  const DenoiserSizes sizes = denoiser_of(shape);
  const auto make = [](std::vector<int64_t> dims, at::ScalarType dtype = at::kFloat) {
    return at::empty(dims, at::TensorOptions(dtype).device(at::kMeta));
  };
  tensor::Batch batch;
  batch.add("noised", {make({rows, sizes.channels + sizes.beside, sizes.height, sizes.width}),
                       {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {make({rows}), {Dim::Row}});
  if (sizes.text > 0)
    batch.add("text", {make({rows, kTokens, sizes.text}), {Dim::Row, Dim::Other, Dim::Feature}});
  else
    batch.add("classes", {make({rows}, at::kLong), {Dim::Row}});
  return batch;
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
