#include "colossal/data/pictures/shape_samples.h"

#include <ATen/ATen.h>

#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"

namespace colossal::data {

ShapeSamples::ShapeSamples(ShapeOptions options)
    : options_(std::move(options)), normalization_(options_.mean, options_.deviation) {
  ShapeOptions& o = options_;
  require(o.count >= 1 && o.width >= 1 && o.height >= 1, "data",
          "drawn shapes need a count and sides of at least 1: got ", o.count, " pictures of ", o.width, " x ",
          o.height);
  if (o.labels.empty()) {
    o.labels.resize(kShapes);
    std::iota(o.labels.begin(), o.labels.end(), 0);
  }
  require(o.labels.size() == kShapes, "data", "drawn shapes need ", kShapes, " labels: got ", o.labels.size());
}

tensor::Batch ShapeSamples::make(int64_t rows) const {
  return image_batch(at::empty({rows, 3, options_.height, options_.width}, at::kFloat),
                     at::zeros({rows, 1}, at::kLong));
}

void ShapeSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  const int64_t shape = shape_of(index);
  const uint64_t look = options_.held_out ? held_out_shape_seed(index) : training_shape_seed(seed);
  const bool mirrored = options_.augment && derive_seed(seed, "mirror") % 2 == 1;
  float* out = batch.at("images").mutable_data_ptr<float>() + row * 3 * options_.height * options_.width;
  normalization_.write(draw_shape(shape, look, options_.width, options_.height), mirrored, out);
  batch.at("labels").mutable_data_ptr<int64_t>()[row] = options_.labels[shape];
}

nlohmann::json ShapeSamples::traits() const {
  const ShapeOptions& o = options_;
  return {{"images", concat(o.count, o.held_out ? " held-out" : "", " drawn shapes")},
          {"size", {o.width, o.height}},
          {"augment", o.augment},
          {"mean", o.mean},
          {"deviation", o.deviation},
          {"labels", o.labels}};
}

}  // namespace colossal::data
