#include "colossal/run/objectives/reconstruction/reconstruction_clips.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/data/pictures/bucket_reader.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_samples.h"
#include "colossal/run/objectives/text_data.h"

namespace colossal::run {
namespace {

/// Clips with noise, of one of the lists.
class ClipNoiseSamples final : public data::SizedSamples {
 public:
  ClipNoiseSamples(std::shared_ptr<const DrawnPictures> drawn, const ReconstructionClips& clips,
                   const LatentNoiseOptions& options)
      : drawn_(std::move(drawn)), clips_(clips), options_(options) {
    Checksum sum;
    for (const int64_t index : indices()) {
      const std::string line = drawn_->at(index).content + "\n";
      sum.update(line.data(), line.size());
    }
    fingerprint_ = sum.hex();
  }
  int64_t count() const override { return static_cast<int64_t>(indices().size()); }
  data::PictureSize size(int64_t index) const override {
    const data::CaptionedPicture& file = drawn_->files->at(at(index));
    return {file.width, file.height};
  }
  int64_t repeats(int64_t index) const override { return drawn_->files->at(at(index)).repeats; }
  tensor::Batch make(int64_t rows, const data::BucketShape& bucket) const override {
    return latent_noise_batch(rows, clips_.with_frames(options_, bucket.frames));
  }
  void fill(int64_t index, uint64_t seed, const data::BucketShape& bucket, tensor::Batch& batch,
            int64_t row) const override {
    fill_latent_noise(pixels_of_part(*drawn_, at(index), bucket), index, seed, options_, batch, row);
  }
  nlohmann::json traits() const override {
    return {{"clips", fingerprint_},
            {"size", {options_.width, options_.height}},
            {"fps", drawn_->fps},
            {"mirror", options_.mirror},
            {"latent", {options_.latent_channels, options_.factor}}};
  }

 private:
  const std::vector<int64_t>& indices() const { return options_.is_held_out ? drawn_->held_out : drawn_->training; }
  int64_t at(int64_t index) const { return indices().at(static_cast<size_t>(index)); }

  std::shared_ptr<const DrawnPictures> drawn_;
  ReconstructionClips clips_;
  LatentNoiseOptions options_;
  std::string fingerprint_;
};

}  // namespace

DrawnDataKeys drawn_keys(const ReconstructionDataKeys& keys) {
  DrawnDataKeys drawn{.size = keys.size, .buckets = 0, .mirror = keys.mirror};
  drawn.frames = keys.frames, drawn.keep = keys.keep, drawn.batch_sizes = keys.batch_sizes, drawn.fps = keys.fps;
  return drawn;
}

ReconstructionClips::ReconstructionClips(const Config& config, const ReconstructionDataKeys& keys,
                                         const models::AutoencoderSizes& sizes)
    : sizes_(sizes), keys_(drawn_keys(keys)) {
  if (keys_.frames.empty()) keys_.frames = {sizes.frames};
  check_clip_lengths(keys_.frames, sizes);
  for (const int64_t frames : keys_.frames)
    require(sizes.chunk_frames == 0 || frames <= sizes.chunk_frames, "data", "frames must be at most the ",
            sizes.chunk_frames, " of a chunk, which the autoencoder encodes and decodes alone: got ", frames,
            "; set data.frames = [", sizes.chunk_frames, "]");
  source_.factor = sizes.factor;
  source_.sizes.channels = sizes.pixel_channels;
  source_.sizes.height = sizes.height / sizes.factor;
  source_.sizes.width = sizes.width / sizes.factor;
  source_.sizes.frames = sizes.frames;
  source_.sizes.text = 1;  // so files need no folder for each class
  lengths_ = lengths_of_clips(keys_, source_, config.replica_rows(0));
}

LatentNoiseOptions ReconstructionClips::with_frames(LatentNoiseOptions options, int64_t frames) const {
  options.frames = frames;
  options.latent_frames = models::latent_frames(sizes_, frames);
  return options;
}

int64_t ReconstructionClips::largest_frames() const { return lengths_.frames[data::largest_length(lengths_)]; }

OpenedData ReconstructionClips::open(const DataRequest& request, const LatentNoiseOptions& options) const {
  const Config& config = request.config;
  const auto drawn =
      std::make_shared<DrawnPictures>(open_drawn_pictures(config, keys_, source_, /*reads_captions=*/false));
  if (on_error_of(config.data) == data::OnError::Skip) skip_broken(*drawn);
  check_clip_batches(config, lengths_, kReconstruction);
  check_one_shape(config, *drawn, lengths_);
  choose_clips(*drawn, lengths_, static_cast<uint64_t>(config.training.seed));
  OpenedData data;
  for (const auto& lines : {drawn->files->take_notices(), drawn->notices})
    data.notices.insert(data.notices.end(), lines.begin(), lines.end());
  data.threads = static_cast<int>(config.data.threads);
  auto reader = std::make_unique<data::BucketReader>(
      std::make_shared<const ClipNoiseSamples>(drawn, *this, options),
      data::BucketReaderOptions{.batches = batch_options(config, request.replica, config.data.threads),
                                .buckets = drawn->buckets,
                                .clips = drawn->clips});
  data.facts = reader->counts();
  data.stream = std::move(reader);
  if (drawn->held_out.empty()) return data;
  LatentNoiseOptions held_out = options;
  held_out.is_held_out = true;
  data.held_out =
      std::make_shared<SamplesOfSize>(std::make_shared<const ClipNoiseSamples>(drawn, *this, held_out),
                                      data::BucketShape{{options.width, options.height}, drawn->held_out_frames});
  return data;
}

}  // namespace colossal::run
