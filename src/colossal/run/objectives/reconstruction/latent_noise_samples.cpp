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
  const std::vector<Dim> dims{Dim::Row, Dim::Other, Dim::Other, Dim::Other};
  tensor::Batch batch;
  batch.add("images", {at::zeros({rows, o.channels, o.height, o.width}, numbers), dims});
  batch.add("noise", {at::zeros({rows, o.latent_channels, o.height / o.factor, o.width / o.factor}, numbers), dims});
  batch.add(kCounts, {at::zeros({rows}, numbers), {Dim::Row}, /*ignored=*/0});
  return batch;
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
  const uint64_t own = options_.is_held_out ? derive_seed(kHeldOutSeed, static_cast<uint64_t>(index)) : seed;
  tensor::Batch source = pictures_->make(1);
  pictures_->fill(index, seed, source, 0);
  at::Tensor picture = source.at("images")[0];
  require(picture.sizes() == batch.at("images").sizes().slice(1), "data", "pictures must have the sizes of the run, ",
          batch.at("images").sizes().slice(1), ": got ", picture.sizes());
  if (options_.mirror && !options_.is_held_out && uniform_of(own, "mirror") < 0.5) picture = picture.flip({2});
  batch.at("images").select(0, row).copy_(picture);
  const at::Tensor noise = batch.at("noise").select(0, row);
  noise.copy_(normal_of(own, "noise", noise.sizes().vec()));
  batch.at(kCounts).select(0, row).fill_(1);
}

nlohmann::json LatentNoiseSamples::traits() const {
  nlohmann::json traits = pictures_->traits();
  traits["mirror"] = options_.mirror;
  traits["latent"] = {options_.latent_channels, options_.factor};
  return traits;
}

}  // namespace colossal::run
