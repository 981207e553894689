// Stored latents of pictures and states of captions, so that a run encodes each once and needs no encoder in memory.
//
//   LatentCache cache("runs/sd/latents", key);
//   if (!cache.has_picture(id)) cache.add({{id, moments}});                  // one shard
//   const at::Tensor moments = cache.picture(id, /*mirrored=*/false);        // [2 C, h, w]: mean, log-variance
//
// A shard is a safetensors file and, beside it, a .json with the key of the cache, the checksum of the file and the
// names in it. The .json is written last, so a shard without one is not read. A shard with another key or another
// checksum is not read either; what it had is made again.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/tensor/batch.h"

namespace colossal::run {

/// What stored values follow from, besides the pictures and the captions.
struct LatentCacheKey {
  std::string vae{}, text_encoder{};  ///< checksums of the weights of the parts; empty = there is none
  std::string dtype{};                ///< "F32" or "F64"
};

/// Thread safety: const members may be called from several threads.
class LatentCache {
 public:
  /// Opens the whole shards of this key in a folder, which need not exist. Cost: reads the shards once, for their
  /// checksums. Errors ("file"): a file that cannot be read.
  LatentCache(std::string folder, LatentCacheKey key);

  bool has_picture(const std::string& id) const { return has(id); }
  /// Returns true if the cache has a picture and, if asked for, its mirror image.
  bool has_picture(const std::string& id, bool with_mirrored) const {
    return has(id) && (!with_mirrored || has(mirrored_name(id)));
  }
  bool has_caption(const std::string& caption) const { return has(name_of(caption)); }
  /// Returns the mean and the log-variance of a latent, [2 C, h, w]: a read-only view of the file. `mirrored`: those of
  /// the picture mirrored left to right. Errors ("data"): the cache lacks it.
  at::Tensor picture(const std::string& id, bool mirrored) const { return at(mirrored ? mirrored_name(id) : id); }
  /// Returns what a model reads of a caption, in one row (models::joined_captions()). Errors ("data"): the cache lacks
  /// it.
  tensor::Batch caption(const std::string& text) const;

  /// Writes a shard with these tensors, those of tensors_of() captions, or by the id of a picture, or by its
  /// mirrored_name().
  /// The shard is not opened. Ranks may write at the same time.
  void add(const std::map<std::string, at::Tensor>& tensors) const;
  /// Opens the shards that were added since, by any rank.
  void refresh();

  /// Returns what a model reads of a caption, in one row, by the names that the cache has for it.
  static std::map<std::string, at::Tensor> tensors_of(const std::string& caption, const tensor::Batch& told);
  static std::string mirrored_name(const std::string& id) { return id + "-mirrored"; }
  const std::string& folder() const { return folder_; }

 private:
  static std::string name_of(const std::string& caption);
  bool has(const std::string& name) const { return owners_.contains(name); }
  at::Tensor at(const std::string& name) const;

  std::string folder_;
  std::string key_;  // as JSON
  std::map<std::string, std::unique_ptr<checkpoint::SafetensorsReader>> shards_;
  std::map<std::string, const checkpoint::SafetensorsReader*> owners_;
};

}  // namespace colossal::run
