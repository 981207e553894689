// The parts of a pipeline beside the model that draws: the encoders of captions, and the autoencoder. Each rank has
// their weights whole. Ranks that pass the same pictures to the autoencoder can share their rows.
//
//   PipelineParts parts(source, world, device, {}, program);
//   const tensor::Batch told = parts.told("a red circle", /*clip_skip=*/0);     // text [1, 77, features]
//   const at::Tensor pixels = parts.pixels(latents);                            // [n, 3, H, W] in about [-1, 1]
//
// Latents become pixels exactly, large ones by rows (models/autoencoder_kl_rows.h), or approximately in tiles.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/diffusion/own_model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/ops/convolution.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/tensor/batch.h"
#include "colossal/text/captions.h"
#include "colossal/train/memory_needs.h"

namespace colossal::distributed {
class RowGroup;
}

namespace colossal::diffusion {

/// How the parts are loaded.
struct PartsLoading : OwnLoading {
  /// For a model whose weights stream: the text encoder is in memory while it reads a caption, and the autoencoder
  /// works by rows, whatever the size
  bool saves_memory = false;
};

class PipelineParts {
 public:
  /// Loads the parts that the pipeline has. Adapters of text encoders among OwnLoading::adapters are merged into them,
  /// each into its own, and those of PipelineSource::text_adapters. Learned words are those of all encoders of CLIP. A
  /// pipeline of captions without a text encoder is one whose model has it within it. Communication: none.
  /// Errors: those of OwnModel, of captions_for() and of run::words_of_encoder(); ("draw") a text encoder or an
  /// autoencoder of other sizes than the model needs; ("adapter") adapters of a text encoder that it lacks.
  PipelineParts(const run::PipelineSource& source, comm::World& world, at::Device device, const PartsLoading& loading,
                const run::Program& program);

  /// Returns what the model reads of a caption, on the host, in one row: models::joined_captions(), or `ids` for a
  /// model that has its text encoder within it. Words that an encoder does not read become a notice.
  /// Requires: the pipeline reads text. Errors: those of models::read_caption().
  tensor::Batch told(const std::string& caption, int64_t clip_skip);
  /// Returns the embedding of a picture in the bytes of a file, [1, features], on the host. `name`: the file's, for
  /// messages. Errors ("draw"): there is no encoder of pictures. Those of run::pixels_to_encode().
  at::Tensor embedding(const std::string& bytes, const std::string& name) const;
  /// Returns what the model draws as pixels [n, 3, H, W], on the host in fp32 at least: decoded latents, or pixels as
  /// they are. `in_tiles`: approximately, as diffusers' tiling (models/autoencoder_tiles.h), on each rank alone.
  /// `ranks`: all of them call it with the same latents, and share the rows of each picture; null = this rank alone.
  /// Communication: that of models::decoded_by_rows(). Errors ("draw"): numbers that are not finite, with the layer.
  at::Tensor pixels(const at::Tensor& drawn, bool in_tiles = false, comm::Group* ranks = nullptr) const;
  /// Returns what the model draws for pixels [n, 3, H, W] in [-1, 1]: the mean of their latents. `in_tiles`, `ranks`:
  /// as above. Communication: that of models::moments_by_rows().
  at::Tensor drawn(const at::Tensor& pixels, bool in_tiles = false, comm::Group* ranks = nullptr) const;
  /// Returns true if the autoencoder is one of clips, whose frames decode_frames() decodes.
  bool decodes_clips() const;
  /// Decodes what the model drew of one clip, [1, C, t, h, w], to `frames` frames, chunk by chunk on this rank alone,
  /// and calls `take` for each, [3, H, W] on the host in fp32 at least. Requires: decodes_clips().
  /// Errors ("draw"): numbers that are not finite; ("model") those of models::decode_in_chunks().
  void decode_frames(const at::Tensor& clip, int64_t frames, const std::function<void(const at::Tensor&)>& take) const;
  /// Returns what the model draws for one frame of a clip, [1, 3, H, W] in [-1, 1]: as drawn(), or with an autoencoder
  /// of clips the latent of a clip of that frame. [1, C, h, w].
  at::Tensor drawn_frame(const at::Tensor& pixels, bool in_tiles = false, comm::Group* ranks = nullptr) const;
  /// Returns a line for the user about pictures of `cells` that are decoded in tiles (models/autoencoder_tiles.h): that
  /// they are approximate. Empty = one tile has them whole.
  std::string note_of_tiles(const ops::PictureSize& cells) const;

  /// Returns lines for the user since the last call.
  std::vector<std::string> take_notices();

 private:
  void load_vae(const run::PipelineSource& source, OwnLoading own, comm::World& world, at::Device device,
                const run::Program& program);
  at::Tensor decoded(const at::Tensor& sample, bool in_tiles, distributed::RowGroup& group) const;
  at::Tensor moments(const at::Tensor& pixels, bool in_tiles, distributed::RowGroup& group) const;

  /// A text encoder of the pipeline.
  struct Encoder {
    text::Captions captions;
    std::unique_ptr<OwnModel> model{};                  // null = the model that draws has it within it, or load
    std::function<std::unique_ptr<OwnModel>()> load{};  // of PartsLoading::saves_memory, for each caption
  };

  models::DenoiserSizes sizes_;
  bool zeros_for_empty_;
  std::vector<Encoder> encoders_;
  std::unique_ptr<OwnModel> vae_;
  std::unique_ptr<OwnModel> image_encoder_;  // null without an IP-adapter
  bool saves_memory_;
  std::vector<std::string> notices_;
};

/// Returns the memory of the parts on each rank: "frozen parameters" of the text encoder and of the autoencoder, and
/// "decoding" a picture of the model's size. From shapes, in the dtypes of the parts. Errors: those of
/// run::find_source().
std::vector<train::MemoryNeed> needs_of_parts(const run::PipelineSource& source, const run::Program& program);

}  // namespace colossal::diffusion
