#include "colossal/models/denoiser.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/task.h"
#include "colossal/nn/patches.h"

namespace colossal::models {

using tensor::Dim;

DenoiserSizes denoiser_of(const ModelShape& shape) {
  const auto sizes = shape.part<DenoiserSizes>();
  require(sizes.channels > 0, "objective", "diffusion needs a model that predicts the noise of pictures: got one that ",
          shape.task().purpose(), "; name a dit, or leave [diffusion] out");
  return sizes;
}

tensor::Batch told_batch(const at::Tensor& told) {
  require(told.dim() >= 1 && told.dim() <= 3, "data",
          "a denoiser must be told classes [B], ids [B, T] or text [B, T, features]: got ", told.sizes());
  tensor::Batch batch;
  if (told.dim() == 1) batch.add("classes", {told, {Dim::Row}});
  if (told.dim() == 2) batch.add("ids", {told, {Dim::Row, Dim::Other}});
  if (told.dim() == 3) batch.add("text", {told, {Dim::Row, Dim::Other, Dim::Feature}});
  return batch;
}

tensor::Batch denoiser_batch(const at::Tensor& noised, const at::Tensor& times, const tensor::Batch& told) {
  tensor::Batch batch;
  batch.add("noised", {noised, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {times, {Dim::Row}});
  for (const auto& [name, field] : told.fields()) batch.add(name, field);
  return batch;
}

tensor::Batch example_noised(const ModelShape& shape, int64_t rows) {
  const DenoiserSizes sizes = denoiser_of(shape);
  const auto make = [](std::vector<int64_t> dims, at::ScalarType dtype = at::kFloat) {
    return at::empty(dims, at::TensorOptions(dtype).device(at::kMeta));
  };
  tensor::Batch told =
      told_batch(sizes.text > 0 ? make({rows, sizes.text_tokens, sizes.text}) : make({rows}, at::kLong));
  if (sizes.pooled > 0) told.add("pooled", {make({rows, sizes.pooled}), {Dim::Row, Dim::Other}});
  if (sizes.sizes > 0) told.add("sizes", {make({rows, sizes.sizes}), {Dim::Row, Dim::Other}});
  if (sizes.told_guidance) told.add("guidance", {make({rows}), {Dim::Row}});
  return denoiser_batch(make({rows, sizes.channels + sizes.beside, sizes.height, sizes.width}), make({rows}), told);
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
