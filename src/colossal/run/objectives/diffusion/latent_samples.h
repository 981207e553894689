// Samples of latents and captions for a model that draws, from a cache, of pictures or clips that a step encodes, or of
// pixels.
//
//   const auto training = std::make_shared<LatentSamples>(pictures, cache, options);
//   data::BucketReader reader(training, nullptr, {.batches = {...}, .buckets = pictures->buckets});
//
// Fields: those of noised_batch(), of the sizes of a bucket. Each step draws a new sample of the latent, mean +
// exp(log-variance / 2) noise, and scales it as the model reads it.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/pictures/bucket_reader.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_cache.h"
#include "colossal/run/objectives/diffusion/noised_samples.h"
#include "colossal/text/captions.h"

namespace colossal::run {

/// Returns the latent that a denoiser reads, from the mean and the log-variance [2 C, h, w] or [2 C, T, h, w] of an
/// autoencoder: a sample of standard normal `noise` [C, h, w] or [C, T, h, w], or the mean without it.
at::Tensor drawn_latent(const models::AutoencoderSizes& sizes, const at::Tensor& moments, const at::Tensor& noise);

/// Options of LatentSamples.
struct LatentOptions {
  NoisedOptions noised;  ///< without height, width and frames, which are those of buckets
  models::AutoencoderSizes vae;
  bool has_latents = true;  ///< false = the model draws pixels, and `vae` is autoencoder_sizes() of its pipeline
  double weight = 1;        ///< of each row
  /// With NoisedOptions::tells_ids(): what makes tokens of captions, for each text encoder
  std::vector<std::shared_ptr<const text::Captions>> captions{};
  bool zeros_for_empty = false;  ///< zeros take the place of what the model reads of the empty caption
  std::string image_encoder{};   ///< key_of_image_encoder() of a model with an IP-adapter, whose embeddings are stored
};

/// The pictures or clips of training, or those held out. A held-out picture has the mean of its latent. Rows that a
/// step encodes draw the same numbers as others, and need no cache (null). Rows of pixels need one for captions alone.
class LatentSamples final : public data::SizedSamples {
 public:
  LatentSamples(std::shared_ptr<const DrawnPictures> pictures, std::shared_ptr<const LatentCache> cache,
                const LatentOptions& options);
  int64_t count() const override { return static_cast<int64_t>(indices().size()); }
  data::PictureSize size(int64_t index) const override;
  int64_t repeats(int64_t index) const override;
  tensor::Batch make(int64_t rows, const data::BucketShape& bucket) const override;
  void fill(int64_t index, uint64_t seed, const data::BucketShape& bucket, tensor::Batch& batch,
            int64_t row) const override;
  nlohmann::json traits() const override;

 private:
  const std::vector<int64_t>& indices() const {
    return noiser_.options().is_held_out ? pictures_->held_out : pictures_->training;
  }
  /// Returns what the model is told of a caption.
  tensor::Batch told(const std::string& caption) const;
  /// Returns what a row is told of a picture or clip.
  Told told_of(int64_t index, const data::BucketShape& bucket, bool is_mirrored) const;
  int64_t picture(int64_t index) const { return indices().at(static_cast<size_t>(index)); }

  std::shared_ptr<const DrawnPictures> pictures_;
  std::shared_ptr<const LatentCache> cache_;
  LatentOptions options_;
  Noiser noiser_;
  std::string fingerprint_;
};

/// Samples of one shape, such as those held out.
class SamplesOfSize final : public data::Samples {
 public:
  SamplesOfSize(std::shared_ptr<const data::SizedSamples> samples, const data::BucketShape& shape)
      : samples_(std::move(samples)), shape_(shape) {}
  int64_t count() const override { return samples_->count(); }
  tensor::Batch make(int64_t rows) const override { return samples_->make(rows, shape_); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override {
    samples_->fill(index, seed, shape_, batch, row);
  }
  nlohmann::json traits() const override { return samples_->traits(); }

 private:
  std::shared_ptr<const data::SizedSamples> samples_;
  data::BucketShape shape_;
};

}  // namespace colossal::run
