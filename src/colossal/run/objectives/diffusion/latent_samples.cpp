#include "colossal/run/objectives/diffusion/latent_samples.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/models/autoencoder.h"
#include "colossal/ops/random.h"

namespace colossal::run {

LatentSamples::LatentSamples(std::shared_ptr<const DrawnPictures> pictures, std::shared_ptr<const LatentCache> cache,
                             const LatentOptions& options)
    : pictures_(std::move(pictures)), cache_(std::move(cache)), options_(options), noiser_(options.noised) {
  Checksum sum;
  for (int64_t index : indices()) {
    const DrawnPicture& drawn = pictures_->at(index);
    std::string lines;
    for (const data::PictureSize& crop : drawn.crops) lines += drawn.id(crop) + "\n";
    lines += pictures_->files->at(index).caption + "\n";
    sum.update(lines.data(), lines.size());
  }
  fingerprint_ = sum.hex();
}

data::PictureSize LatentSamples::size(int64_t index) const {
  const data::CaptionedPicture& file = pictures_->files->at(picture(index));
  return {file.width, file.height};
}

int64_t LatentSamples::repeats(int64_t index) const { return pictures_->files->at(picture(index)).repeats; }

tensor::Batch LatentSamples::make(int64_t rows, const data::PictureSize& bucket) const {
  NoisedOptions options = noiser_.options();
  options.height = bucket.height / options_.vae.factor;
  options.width = bucket.width / options_.vae.factor;
  return noised_batch(rows, options);
}

void LatentSamples::fill(int64_t index, uint64_t seed, const data::PictureSize& bucket, tensor::Batch& batch,
                         int64_t row) const {
  const DrawnPicture& drawn = pictures_->at(picture(index));
  const uint64_t own = noiser_.seed_of(index, seed);
  const at::Tensor moments = cache_->picture(drawn.id(bucket), noiser_.is_mirrored(own));
  const int64_t channels = options_.vae.channels;
  at::Tensor sample = moments.narrow(0, 0, channels);
  if (!noiser_.options().is_held_out) {
    const std::vector<int64_t> sizes = sample.sizes().vec(), start(sizes.size(), 0);
    at::Tensor noise = at::empty(sizes, at::kFloat);
    ops::fill_normal(noise, sizes, start, start, sizes, derive_seed(own, "latent"), 1);
    sample = sample + at::exp(moments.narrow(0, channels, channels) / 2) * noise;
  }
  Told told{.label = drawn.label};
  if (noiser_.options().text > 0) {
    told.text = cache_->caption(pictures_->files->at(picture(index)).caption);
    told.empty = cache_->caption("");
  }
  noiser_.fill(models::latent_of(options_.vae, sample), told, index, own, batch, row);
  if (options_.weight != 1) batch.at(kWeights).select(0, row).mul_(options_.weight);
}

nlohmann::json LatentSamples::traits() const {
  return {{"pictures", fingerprint_},
          {"diffusion", checksum(to_toml(noiser_.options().keys))},
          {"mirror", noiser_.options().mirror}};
}

}  // namespace colossal::run
