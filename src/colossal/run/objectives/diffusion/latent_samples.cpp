#include "colossal/run/objectives/diffusion/latent_samples.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/caption_parts.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/diffusion/row_conditions.h"
#include "colossal/run/objectives/sample_noise.h"

namespace colossal::run {

at::Tensor drawn_latent(const models::AutoencoderSizes& sizes, const at::Tensor& moments, const at::Tensor& noise) {
  at::Tensor sample = moments.narrow(0, 0, sizes.channels);
  if (noise.defined()) sample = sample + at::exp(moments.narrow(0, sizes.channels, sizes.channels) / 2) * noise;
  return models::latent_of(sizes, sample.unsqueeze(0))[0];
}

LatentSamples::LatentSamples(std::shared_ptr<const DrawnPictures> pictures, std::shared_ptr<const LatentCache> cache,
                             const LatentOptions& options)
    : pictures_(std::move(pictures)), cache_(std::move(cache)), options_(options), noiser_(options.noised) {
  Checksum sum;
  for (int64_t index : indices()) {
    const DrawnPicture& drawn = pictures_->at(index);
    std::string lines;
    for (const data::PictureSize& crop : drawn.crops) lines += drawn.id(crop) + "\n";
    lines += pictures_->files->at(index).caption + "\n";
    if (!drawn.control.empty()) lines += drawn.control + "\n";
    sum.update(lines.data(), lines.size());
  }
  fingerprint_ = sum.hex();
}

data::PictureSize LatentSamples::size(int64_t index) const {
  const data::CaptionedPicture& file = pictures_->files->at(picture(index));
  return {file.width, file.height};
}

int64_t LatentSamples::repeats(int64_t index) const { return pictures_->files->at(picture(index)).repeats; }

tensor::Batch LatentSamples::make(int64_t rows, const data::BucketShape& bucket) const {
  NoisedOptions options = noiser_.options();
  options.height = bucket.size.height / options_.vae.factor;
  options.width = bucket.size.width / options_.vae.factor;
  if (options.frames > 0) {
    options.pixel_frames = bucket.frames;
    options.frames = models::latent_frames(options_.vae, bucket.frames);
  }
  const tensor::Batch batch = noised_batch(rows, options);
  if (options.reads_ids || !options.tells_ids()) return batch;
  return batch.without(kText).without(kPooled);
}

void LatentSamples::fill(int64_t index, uint64_t seed, const data::BucketShape& bucket, tensor::Batch& batch,
                         int64_t row) const {
  const uint64_t own = noiser_.seed_of(index, seed);
  const NoisedOptions& options = noiser_.options();
  const std::vector<int64_t> sizes = batch.at(kNoised).sizes().slice(1).vec();
  const bool is_mirrored = noiser_.is_mirrored(own), is_encoded = options_.has_latents && options.unencoded == 0;
  at::Tensor noise, pixels, latent;
  if (options_.has_latents && !options.is_held_out) noise = normal_of(own, "latent", sizes);
  if (!is_encoded) {
    pixels = pixels_of_part(*pictures_, picture(index), bucket);
    if (is_mirrored) pixels = pixels.flip({-1});
  }
  if (is_encoded) {
    latent = drawn_latent(options_.vae, cache_->picture(pictures_->id(picture(index), bucket), is_mirrored), noise);
  } else if (options_.has_latents) {
    batch.at(kPixels).select(0, row).copy_(pixels);
    if (noise.defined()) batch.at(kSampleNoise).select(0, row).copy_(noise);
    latent = at::zeros(sizes, at::kFloat);
  } else {
    latent = pixels;
  }
  noiser_.fill(latent, told_of(picture(index), bucket, is_mirrored), index, own, batch, row);
  if (options_.weight != 1) batch.at(kWeights).select(0, row).mul_(options_.weight);
}

Told LatentSamples::told_of(int64_t index, const data::BucketShape& bucket, bool is_mirrored) const {
  const NoisedOptions& options = noiser_.options();
  Told told{.label = pictures_->at(index).label};
  if (options.text > 0) told.caption = this->told(pictures_->files->at(index).caption), told.empty = this->told("");
  told.conditions = row_conditions(options.conditions, {.pictures = *pictures_,
                                                        .index = index,
                                                        .bucket = bucket,
                                                        .is_mirrored = is_mirrored,
                                                        .cache = cache_.get(),
                                                        .image_encoder = options_.image_encoder});
  return told;
}

tensor::Batch LatentSamples::told(const std::string& caption) const {
  if (!noiser_.options().tells_ids()) {
    tensor::Batch told = cache_->caption(caption);
    if (!caption.empty() || !options_.zeros_for_empty) return told;
    return told.map([](const tensor::Field& field) { return at::zeros_like(field.tensor); });
  }
  tensor::Batch told;
  for (size_t i = 0; i < options_.captions.size(); ++i) {
    const CaptionIds ids = caption_ids(*options_.captions[i], caption);
    told.add(models::caption_part_name(kIds, i), {ids.ids, {tensor::Dim::Row, tensor::Dim::Other}});
    if (noiser_.options().masks_text && !told.find(kTextMask).defined())
      told.add(kTextMask, {ids.mask, {tensor::Dim::Row, tensor::Dim::Other}});
  }
  return told;
}

nlohmann::json LatentSamples::traits() const {
  nlohmann::json traits{{"pictures", fingerprint_},
                        {"diffusion", noiser_.options().keys.fingerprint()},
                        {"mirror", noiser_.options().mirror}};
  if (pictures_->fps > 0) traits["fps"] = pictures_->fps;
  if (!options_.image_encoder.empty()) traits["image_encoder"] = options_.image_encoder;
  return traits;
}

}  // namespace colossal::run
