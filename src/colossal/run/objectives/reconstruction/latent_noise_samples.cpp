#include "colossal/run/objectives/reconstruction/latent_noise_samples.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/run/objectives/sample_noise.h"

namespace colossal::run {

tensor::Batch latent_noise_batch(int64_t rows, const LatentNoiseOptions& o, at::Device device) {
  using tensor::Dim;
  const auto numbers = at::TensorOptions(device).dtype(at::kFloat);
  std::vector<int64_t> pixels{rows, o.channels, o.height, o.width},
      cells{rows, o.latent_channels, o.height / o.factor, o.width / o.factor};
  if (o.frames > 0) {
    pixels.insert(pixels.begin() + 2, o.frames);
    cells.insert(cells.begin() + 2, o.latent_frames);
  }
  std::vector<Dim> dims(pixels.size(), Dim::Other);
  dims.front() = Dim::Row;
  tensor::Batch batch;
  batch.add("images", {at::zeros(pixels, numbers), dims});
  batch.add("noise", {at::zeros(cells, numbers), dims});
  batch.add(kCounts, {at::zeros({rows}, numbers), {Dim::Row}, /*ignored=*/0});
  return batch;
}

void fill_latent_noise(const at::Tensor& picture, int64_t index, uint64_t seed, const LatentNoiseOptions& o,
                       tensor::Batch& batch, int64_t row) {
  const uint64_t own = o.is_held_out ? derive_seed(kHeldOutSeed, static_cast<uint64_t>(index)) : seed;
  const at::Tensor pixels = batch.at("images").select(0, row), noise = batch.at("noise").select(0, row);
  require(picture.sizes() == pixels.sizes(), "data", "pictures must have the sizes of the run, ", pixels.sizes(),
          ": got ", picture.sizes());
  const bool is_mirrored = o.mirror && !o.is_held_out && uniform_of(own, "mirror") < 0.5;
  pixels.copy_(is_mirrored ? picture.flip({-1}) : picture);
  noise.copy_(normal_of(own, "noise", noise.sizes().vec()));
  batch.at(kCounts).select(0, row).fill_(1);
}

int64_t frames_of(const tensor::Batch& batch) {
  const at::Tensor& images = batch.at("images");
  return images.dim() == 5 ? images.size(2) : 1;
}

at::Tensor pixels_of(const at::Tensor& pictures, const at::Tensor& like) {
  return pictures.to(like.device(), /*non_blocking=*/true).to(like.scalar_type()).flatten(2).transpose(1, 2);
}

at::Tensor counts_of(const at::Tensor& like, const nn::ForwardContext& step) {
  return step.batch->at(kCounts).to(like.device(), /*non_blocking=*/true).to(like.scalar_type());
}

LatentNoiseSamples::LatentNoiseSamples(std::shared_ptr<const data::Samples> pictures, const LatentNoiseOptions& options)
    : pictures_(std::move(pictures)), options_(options) {}

void LatentNoiseSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  tensor::Batch source = pictures_->make(1);
  pictures_->fill(index, seed, source, 0);
  fill_latent_noise(source.at("images")[0], index, seed, options_, batch, row);
}

nlohmann::json LatentNoiseSamples::traits() const {
  nlohmann::json traits = pictures_->traits();
  traits["mirror"] = options_.mirror;
  traits["latent"] = {options_.latent_channels, options_.factor};
  return traits;
}

}  // namespace colossal::run
