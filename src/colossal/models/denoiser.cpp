#include "colossal/models/denoiser.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/conditions.h"
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
  std::vector<Dim> dims(static_cast<size_t>(noised.dim()), Dim::Other);
  dims.front() = Dim::Row;
  batch.add("noised", {noised, dims});
  batch.add("times", {times, {Dim::Row}});
  for (const auto& [name, field] : told.fields()) batch.add(name, field);
  return batch;
}

tensor::Batch example_told(const ModelShape& shape, int64_t rows, const ops::PictureSize& cells, at::ScalarType dtype) {
  const DenoiserSizes sizes = denoiser_of(shape);
  const auto numbers = at::TensorOptions(dtype).device(at::kMeta);
  tensor::Batch told = told_batch(sizes.text > 0 ? at::empty({rows, sizes.text_tokens, sizes.text}, numbers)
                                                 : at::empty({rows}, numbers.dtype(at::kLong)));
  if (sizes.pooled > 0) told.add("pooled", {at::empty({rows, sizes.pooled}, numbers), {Dim::Row, Dim::Other}});
  for (const Condition& one : conditions_of(shape)) told.add(one.name, one.zeros(rows, cells, numbers));
  return told;
}

tensor::Batch example_noised(const ModelShape& shape, int64_t rows) {
  const DenoiserSizes sizes = denoiser_of(shape);
  const auto numbers = at::TensorOptions(at::kFloat).device(at::kMeta);
  std::vector<int64_t> noised{rows, sizes.channels + sizes.beside, sizes.height, sizes.width};
  if (sizes.frames > 0) noised.insert(noised.begin() + 2, sizes.frames);
  return denoiser_batch(at::empty(noised, numbers), at::empty({rows}, numbers),
                        example_told(shape, rows, {sizes.height, sizes.width}));
}

ops::PictureSize picture_size(const tensor::Batch& batch) {
  const at::Tensor& noised = batch.at("noised");
  require(noised.dim() == 4 || noised.dim() == 5, "data",
          "noised must be [B, channels, height, width], or clips [B, channels, frames, height, width]: got ",
          noised.sizes());
  return {noised.size(-2), noised.size(-1)};
}

int64_t sequence_positions(const ModelShape& shape, const tensor::Batch& batch) {
  const at::Tensor noised = batch.find("noised");
  if (!noised.defined()) return std::max<int64_t>(1, shape.positions);
  const ops::PictureSize size = picture_size(batch);
  const int64_t patch = shape.part<DenoiserSizes>().patch,
                places = ((size.height + patch - 1) / patch) * ((size.width + patch - 1) / patch);
  return noised.dim() == 5 && !shape.part<AttentionAxes>().two ? noised.size(2) * places : places;
}

namespace {

/// Returns the first `size` indices of a dimension; x itself if there are no others, so that backward copies nothing.
at::Tensor first_of(const at::Tensor& x, int64_t dim, int64_t size) {
  return x.size(dim) == size ? x : x.narrow(dim, 0, size);
}

at::Tensor predicted(const DenoiserSizes& s, const at::Tensor& end, const ops::PictureSize& size) {
  const bool is_clip = s.frames > 0;
  const at::Tensor patches = is_clip ? end.transpose(1, 2).flatten(0, 1) : end;
  at::Tensor x =
      nn::join_patches(patches, nn::patches_over({s.outputs + s.unread, size.height, size.width, s.patch, 0}));
  x = first_of(first_of(first_of(x, 1, s.outputs), 2, size.height), 3, size.width);
  if (s.sign != 1) x = x * s.sign;
  return is_clip ? x.unflatten(0, {end.size(0), end.size(2)}).transpose(1, 2) : x;
}

}  // namespace

at::Tensor predicted_picture(const ModelShape& shape, const at::Tensor& end) {
  const DenoiserSizes sizes = denoiser_of(shape);
  return predicted(sizes, end, {sizes.height, sizes.width});
}

at::Tensor predicted_picture(const ModelShape& shape, const at::Tensor& end, const tensor::Batch& batch) {
  return predicted(denoiser_of(shape), end, picture_size(batch));
}

}  // namespace colossal::models
