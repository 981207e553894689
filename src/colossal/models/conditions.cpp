#include "colossal/models/conditions.h"

#include <ATen/ATen.h>

#include "colossal/models/shape_parts.h"

namespace colossal::models {

tensor::Field Condition::zeros(int64_t rows, const ops::PictureSize& cells, const at::TensorOptions& options) const {
  std::vector<int64_t> all{rows};
  all.insert(all.end(), sizes.begin(), sizes.end());
  if (per_cell > 0) all.insert(all.end(), {per_cell * cells.height, per_cell * cells.width});
  return condition_field(at::zeros(all, options));
}

tensor::Field condition_field(const at::Tensor& values) {
  std::vector<tensor::Dim> dims(static_cast<size_t>(values.dim()), tensor::Dim::Other);
  dims.front() = tensor::Dim::Row;
  return {values, dims};
}

std::vector<Condition> conditions_of(const ModelShape& shape) {
  const auto sizes = shape.part<DenoiserSizes>();
  const std::vector<int64_t> layers = shape.part<OwnControl>().channels;
  std::vector<Condition> all;
  if (sizes.reads_rate) all.push_back({.name = kRate});
  if (sizes.sizes > 0) all.push_back({.name = kSizes, .sizes = {sizes.sizes}});
  if (sizes.told_guidance) all.push_back({.name = kGuidance});
  if (!layers.empty())  // each layer but the first halves the sides of the control picture
    all.push_back({.name = kControl, .sizes = {3}, .per_cell = int64_t{1} << (layers.size() - 1)});
  if (const int64_t features = shape.part<OwnImagePrompt>().features; features > 0)
    all.push_back({.name = kImageEmbedding, .sizes = {features}});
  return all;
}

}  // namespace colossal::models
