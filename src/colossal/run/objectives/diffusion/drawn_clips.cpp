#include "colossal/run/objectives/diffusion/drawn_clips.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/pictures/bucket_order.h"
#include "colossal/data/videos/clip_rows.h"
#include "colossal/data/videos/video.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"

namespace colossal::run {
namespace {

/// Passes on the errors of decoding with what to do about them.
template <class Work>
void with_skip_remedy(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    throw Error("data", concat(error.message(), "; to train without it set data.on_error = \"skip\""));
  }
}

/// Calls `take` with each frame of a part of a video.
void read_part(const DrawnPictures& drawn, int64_t index, const data::ClipPart& part,
               const std::function<void(const data::Picture&)>& take) {
  const data::PictureBytes bytes = drawn.files->open(index);
  const auto video = data::open_video(bytes, drawn.files->at(index).name);
  data::read_clip(*video, part, take);
}

/// Returns the length of the clips held out; 0 = none of them reaches one.
int64_t length_held_out(const DrawnPictures& drawn, const data::ClipLengths& lengths) {
  const size_t largest = data::largest_length(lengths);
  for (size_t i = largest + 1; i-- > 0;) {
    const int64_t frames = lengths.frames[i];
    const auto reaches = [&](int64_t index) { return drawn.at(index).reached >= frames; };
    if (std::any_of(drawn.held_out.begin(), drawn.held_out.end(), reaches)) return frames;
  }
  return 0;
}

}  // namespace

models::AutoencoderSizes autoencoder_sizes(const PipelineSource& pipeline) {
  if (!pipeline.has_latents()) return {.channels = pipeline.sizes.channels};
  return models::autoencoder_of(find_source(pipeline.vae, built_in()).shape);
}

data::BatchOptions batch_options(const Config& config, int replica, int64_t threads) {
  const tensor::ReplicaRows rows = config.replica_rows(replica);
  return {.batch_size = rows.batch_size,
          .rank = static_cast<int>(rows.replica),
          .ranks = static_cast<int>(rows.replicas),
          .micro_batches = rows.micro_batches,
          .seed = static_cast<uint64_t>(config.training.seed),
          .threads = static_cast<int>(threads)};
}

void refuse_clip_keys(const DrawnDataKeys& keys, const char* model_of_clips) {
  const bool has_lists = !keys.frames.empty() || !keys.keep.empty() || !keys.batch_sizes.empty();
  require(!has_lists && keys.fps == DrawnDataKeys().fps, "data",
          "frames, keep, batch_sizes and fps need a model of clips: got one of pictures; remove data.",
          !keys.frames.empty() ? "frames"
          : has_lists          ? "keep and data.batch_sizes"
                               : "fps",
          ", or name a model of clips, such as ", model_of_clips);
}

void check_clip_keys(const DrawnDataKeys& keys, const PipelineSource& pipeline) {
  if (pipeline.sizes.frames == 0) return refuse_clip_keys(keys, "stdit3-tiny");
  require(!keys.mirror, "data", "mirror must be false for clips, because their captions name directions: got true; ",
          "remove data.mirror");
  require(keys.prior.empty(), "data", "clips have no prior: got ", keys.prior, "; remove data.prior");
  check_clip_lengths(keys.frames, autoencoder_sizes(pipeline));
}

void check_clip_lengths(const std::vector<int64_t>& lengths, const models::AutoencoderSizes& vae) {
  for (const int64_t frames : lengths) try {
      models::latent_frames(vae, frames);
    } catch (const Error& error) {
      throw Error("data", concat("frames must be lengths that can be encoded: ", error.message()));
    }
}

data::ClipLengths lengths_of_clips(const DrawnDataKeys& keys, const PipelineSource& pipeline,
                                   const tensor::ReplicaRows& rows) {
  data::ClipLengths lengths{.frames = keys.frames, .keep = keys.keep, .batch_sizes = keys.batch_sizes};
  if (lengths.frames.empty())
    lengths.frames = {models::pixel_frames(autoencoder_sizes(pipeline), pipeline.sizes.frames)};
  return data::completed(lengths, rows);
}

void complete_diffusion(Config& config, const OwnTables& tables, std::vector<std::string>&) {
  complete_clip_batches(config, tables.data<DrawnDataKeys>());
}

void complete_clip_batches(Config& config, const DrawnDataKeys& keys) {
  data::ClipLengths lengths{.frames = keys.frames, .keep = keys.keep, .batch_sizes = keys.batch_sizes};
  if (lengths.frames.empty()) lengths.frames = {1};                 // those of the model
  if (lengths.batch_sizes.size() != lengths.frames.size()) return;  // there are none, or the objective refuses them
  const int64_t rows = lengths.batch_sizes[data::largest_length(lengths)], replicas = config.parallel.replicas(),
                accumulate = config.training.accumulate;
  // Otherwise the config would refuse a training.batch_size that the user may not have given.
  if (rows % (replicas * accumulate) != 0 && !keys.frames.empty())
    data::completed(lengths, {.batch_size = rows, .micro_batches = accumulate, .replicas = replicas});
  config.training.batch_size = rows;
}

void check_clip_batches(const Config& config, const data::ClipLengths& lengths, const char* table) {
  const int64_t rows = lengths.batch_sizes[data::largest_length(lengths)];
  require(config.training.batch_size == rows, "training",
          "batch_size must be that of the batches with the most frames ", "(data.batch_sizes): got ",
          config.training.batch_size, "; set training.batch_size = ", rows, ", or add the table [", table,
          "], with which it follows");
}

void check_one_shape(const Config& config, const DrawnPictures& drawn, const data::ClipLengths& lengths) {
  const bool has_one_shape = drawn.buckets.size() == 1 && lengths.frames.size() == 1;
  require(!config.training.cuda_graph || has_one_shape, "training",
          "cuda_graph needs batches of one size: got pictures in buckets or clips of several lengths; set data.buckets "
          "= 0 and one length, or training.cuda_graph = false");
}

void choose_clips(DrawnPictures& drawn, const data::ClipLengths& lengths, uint64_t seed) {
  std::vector<data::MeasuredClip> measured;
  for (const int64_t index : drawn.training) {
    const data::CaptionedPicture& file = drawn.files->at(index);
    const size_t shape = data::nearest_bucket(drawn.buckets, {file.width, file.height});
    measured.push_back({drawn.at(index).reached, static_cast<int64_t>(shape)});
  }
  drawn.clips = std::make_shared<const data::ClipRows>(
      std::move(measured), lengths,
      data::ClipRowsOptions{.shapes = static_cast<int64_t>(drawn.buckets.size()), .fps = drawn.fps, .seed = seed});
  const int64_t frames = length_held_out(drawn, lengths), all = static_cast<int64_t>(drawn.held_out.size());
  std::erase_if(drawn.held_out, [&](int64_t index) { return frames == 0 || drawn.at(index).reached < frames; });
  drawn.held_out_frames = std::max<int64_t>(frames, 1);
  const int64_t left_out = all - static_cast<int64_t>(drawn.held_out.size());
  if (left_out > 0)
    drawn.notices.push_back(concat(left_out, " of the ", all, " clips held out have fewer than the ",
                                   frames > 0 ? frames : lengths.frames.front(), " frames of an evaluation at ",
                                   drawn.fps, " a second: they are left out"));
}

void add_parts(DrawnPictures& drawn, int64_t steps) {
  const data::ClipRows& clips = *drawn.clips;
  const data::BucketOrder order(data::streams_of(drawn.clips), {.rows_of_bucket = clips.batch_sizes()});
  const auto add = [&](int64_t index, const data::BucketShape& part) {
    std::vector<data::BucketShape>& parts = drawn.pictures.at(static_cast<size_t>(index)).parts;
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
  };
  int64_t left = steps;
  for (int64_t epoch = 0; left > 0; left -= order.batches(epoch++))
    for (const data::ClipUse& use : clips.uses(epoch))
      add(drawn.training.at(static_cast<size_t>(use.clip)),
          {drawn.buckets.at(static_cast<size_t>(use.bucket % clips.shapes())), clips.frames_of(use.bucket), use.start});
  for (const int64_t index : drawn.held_out) add(index, {drawn.at(index).crops.front(), drawn.held_out_frames});
}

void check_decodes(const DrawnPictures& drawn, int64_t index) {
  const data::CaptionedPicture& file = drawn.files->at(index);
  if (file.seconds == 0)
    data::decode_picture(drawn.files->bytes(index), file.name);
  else
    read_part(drawn, index, {0, drawn.at(index).reached, drawn.fps}, [](const data::Picture&) {});
}

at::Tensor pixels_of_part(const DrawnPictures& drawn, int64_t index, const data::BucketShape& part) {
  if (drawn.fps == 0) return pixels_of(drawn, index, part.size);
  if (drawn.files->at(index).seconds == 0) return pixels_of(drawn, index, part.size).unsqueeze(1);
  at::Tensor clip = at::empty({3, part.frames, part.size.height, part.size.width}, at::kFloat);
  with_skip_remedy([&] {
    int64_t frame = 0;
    read_part(drawn, index, {part.start, part.frames, drawn.fps}, [&](const data::Picture& picture) {
      const data::Crop crop = data::middle_crop({picture.width, picture.height}, part.size);
      clip.select(1, frame++).copy_(signed_pixels(data::resample(picture, crop.box, crop.width, crop.height)));
    });
  });
  return clip;
}

}  // namespace colossal::run
