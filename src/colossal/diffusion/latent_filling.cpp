#include "colossal/diffusion/latent_filling.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/diffusion/clip_moments.h"
#include "colossal/diffusion/own_model.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/image_encoder.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/diffusion/prompt_pictures.h"
#include "colossal/train/rank_inputs.h"

namespace colossal::diffusion {
namespace {

constexpr size_t kShardRows = 64;  // of a shard; a run that is stopped loses at most the shard that it makes

/// Values that are written to the cache, a shard at a time.
class Shard {
 public:
  explicit Shard(const run::LatentCache& cache) : cache_(cache) {}
  void add(const std::string& name, const at::Tensor& value) { tensors_[name] = value.to(at::kCPU).contiguous(); }
  void write_if_full() {
    if (tensors_.size() >= kShardRows) write();
  }
  void write() {
    cache_.add(tensors_);
    tensors_.clear();
  }

 private:
  const run::LatentCache& cache_;
  std::map<std::string, at::Tensor> tensors_;
};

/// Returns every n-th element, from the rank's own.
template <class T>
std::vector<T> share_of(const std::vector<T>& all, comm::World& world) {
  std::vector<T> own;
  for (size_t i = static_cast<size_t>(world.rank()); i < all.size(); i += static_cast<size_t>(world.size()))
    own.push_back(all[i]);
  return own;
}

void encode_captions(const std::vector<std::string>& missing, const run::LatentCache& cache, const LatentWork& work,
                     comm::World& world, at::Device device, const run::Program& program) {
  const std::vector<std::string> own = share_of(missing, world);
  if (own.empty()) return;
  const run::PipelineSource& pipeline = work.pipeline;
  std::vector<std::vector<tensor::Batch>> read(own.size());  // of each caption, by each encoder
  for (size_t i = 0; i < pipeline.captions.size(); ++i) {
    const models::CaptionPart& part = pipeline.sizes.captions[i];
    const OwnModel encoder(pipeline.captions[i].encoder, world, device, {.dtype = work.dtype, .seed = pipeline.seed},
                           program);
    const text::Captions captions = run::captions_for(pipeline.captions[i], part, encoder.model().shape);
    for (size_t k = 0; k < own.size(); ++k) {
      const run::CaptionIds tokens = run::caption_ids(captions, own[k]);
      const tensor::Batch told =
          models::read_caption(part, encoder.model(), tokens.ids.to(device), tokens.mask.to(device));
      read[k].push_back(told.map([](const tensor::Field& field) { return field.tensor.to(at::kCPU); }));
    }
  }
  Shard shard(cache);
  for (size_t k = 0; k < own.size(); ++k) {
    const tensor::Batch told = models::joined_captions(pipeline.sizes, read[k]);
    for (const auto& [name, tensor] : run::LatentCache::tensors_of(own[k], told)) shard.add(name, tensor);
    shard.write_if_full();
  }
  shard.write();
}

/// A crop of a picture of one of the lists, or a part of a video.
struct Missing {
  const run::DrawnPictures* list;
  int64_t index;
  data::BucketShape part;
};

/// Returns what is needed of a picture or video.
std::vector<data::BucketShape> parts_of(const run::DrawnPictures& list, int64_t index) {
  if (list.fps > 0) return list.at(index).parts;
  std::vector<data::BucketShape> parts;
  for (const data::PictureSize& crop : list.at(index).crops) parts.push_back({crop});
  return parts;
}

void encode_pictures(const std::vector<Missing>& missing, const run::LatentCache& cache, const LatentWork& work,
                     comm::World& world, at::Device device, const run::Program& program) {
  const std::vector<Missing> own = share_of(missing, world);
  if (own.empty()) return;
  const OwnModel vae(work.pipeline.vae, world, device, {.dtype = work.dtype, .seed = work.pipeline.seed}, program);
  Shard shard(cache);
  for (const auto& [list, index, part] : own) {
    at::Tensor pixels;
    try {
      pixels = run::pixels_of_part(*list, index, part).unsqueeze(0).to(device).to(work.dtype);
    } catch (const Error&) {
      if (work.on_error == data::OnError::Refuse) throw;
      continue;  // run::skip_broken() names it
    }
    const std::string id = list->id(index, part);
    shard.add(id, encoded_moments(vae.model(), pixels, &vae.parameters())[0]);
    if (work.mirror)
      shard.add(run::LatentCache::mirrored_name(id),
                encoded_moments(vae.model(), pixels.flip({-1}), &vae.parameters())[0]);
    shard.write_if_full();
  }
  shard.write();
}

/// A picture whose embedding is missing.
struct MissingPrompt {
  const run::DrawnPictures* list;
  int64_t index;
};

/// Returns the pictures without an embedding, by what identifies it.
std::map<std::string, MissingPrompt> missing_prompts(const run::LatentCache& cache, const LatentWork& work) {
  std::map<std::string, MissingPrompt> missing;
  if (work.image_encoder.path.empty()) return missing;
  const std::string encoder = run::key_of_image_encoder(work.image_encoder);
  for (const run::DrawnPictures* list : work.pictures)
    for (int64_t i = 0; i < list->files->count(); ++i)
      if (const std::string id = run::prompt_id(list->at(i), encoder); !cache.has_picture(id))
        missing.emplace(id, MissingPrompt{list, i});
  return missing;
}

void embed_pictures(const std::map<std::string, MissingPrompt>& missing, const run::LatentCache& cache,
                    const LatentWork& work, comm::World& world, at::Device device, const run::Program& program) {
  const auto own = share_of(std::vector<std::pair<std::string, MissingPrompt>>(missing.begin(), missing.end()), world);
  if (own.empty()) return;
  const OwnModel encoder(work.image_encoder.path, world, device, {.dtype = work.dtype, .seed = work.image_encoder.seed},
                         program);
  const int64_t side = models::image_encoder_of(encoder.model().shape).side;
  Shard shard(cache);
  for (const auto& [id, picture] : own) {
    at::Tensor pixels;
    try {
      const auto& files = *picture.list->files;
      pixels = run::pixels_to_encode(files.bytes(picture.index), files.at(picture.index).name, side);
    } catch (const Error&) {
      if (work.on_error == data::OnError::Refuse) throw;
      continue;  // run::skip_broken() names it
    }
    shard.add(id, models::image_embedding(encoder.model(), pixels.unsqueeze(0).to(device).to(work.dtype))[0]);
    shard.write_if_full();
  }
  shard.write();
}

}  // namespace

void fill_latents(comm::World& world, run::LatentCache& cache, const LatentWork& work, at::Device device,
                  const run::Program& program) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> captions;
  for (const std::string& caption : work.captions)
    if (!cache.has_caption(caption)) captions.push_back(caption);
  std::map<std::string, Missing> pictures;  // by id, because a file may be there twice
  for (const run::DrawnPictures* list : work.pictures)
    for (int64_t i = 0; i < list->files->count(); ++i)
      for (const data::BucketShape& part : parts_of(*list, i)) {
        const std::string id = list->id(i, part);
        if (!cache.has_picture(id, work.mirror)) pictures.emplace(id, Missing{list, i, part});
      }
  const std::map<std::string, MissingPrompt> prompts = missing_prompts(cache, work);
  std::vector<Missing> missing;
  for (const auto& [id, picture] : pictures) missing.push_back(picture);
  const auto everyone = train::group_of_all(world);
  comm::agree(*everyone, at::kCPU, [&] {
    encode_captions(captions, cache, work, world, device, program);
    embed_pictures(prompts, cache, work, world, device, program);
    encode_pictures(missing, cache, work, world, device, program);
  });
  cache.refresh();
}

}  // namespace colossal::diffusion
