// The autoencoder of clips of Open-Sora 1.2 (arXiv:2412.20404): an AutoencoderKL encodes each frame, and a second
// autoencoder, causal in time, encodes chunks of 17 of its latents, each alone. A chunk becomes five latent frames.
//
//   const ModelShape shape = built_in().resolve({.name = "open-sora-vae-tiny"});
//   const at::Tensor moments = models::moments_of_clips(model, pixels);      // models/autoencoder_clips.h
//
// It is an autoencoder (models/autoencoder.h), of clips. The second one reads the means of the first one's latents,
// times `scaling`; Open-Sora draws a sample of them. Before the first frame of a chunk zeros fill it up to a multiple
// of four frames; decoded, they are dropped. A pass of the model takes clips of at most a chunk. It runs with whole
// clips on each rank: under data parallelism, ZeRO and pipelines, with recomputed blocks and memory tiers.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/autoencoder_kl_parts.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"

namespace colossal::models {

/// The sizes of the autoencoder. It takes clips of any size; `frames`, `height` and `width` are those of training and
/// of plans.
struct OpenSoraVaeSizes {
  int64_t frames = 17, height = 256, width = 256;
  std::vector<int64_t> levels{128, 256, 512, 512};  ///< AutoencoderKlSizes, of the autoencoder of frames
  int64_t resnets = 2;
  int64_t channels = 4;      ///< of both latents
  double scaling = 0.18215;  ///< of the latents of frames that the second autoencoder reads
  int64_t filters = 128;     ///< features of the second autoencoder, times those of `multipliers` in each level
  std::vector<int64_t> multipliers{1, 2, 2, 4};
  std::vector<int64_t> halves{0, 1, 1};                ///< 1 = frames are halved after that level
  int64_t time_resnets = 4;                            ///< of each of its levels
  int64_t groups = 32;                                 ///< of each norm
  int64_t chunk = 17;                                  ///< frames that are encoded and decoded on their own
  std::vector<double> shift{-0.10, 0.34, 0.27, 0.98};  ///< a denoiser reads (sample - shift) / scale, by channels
  std::vector<double> scale{3.85, 2.32, 2.33, 3.06};

  /// Returns the sizes of the autoencoder of frames.
  AutoencoderKlSizes of_frames() const;
  /// Returns the frames of a chunk for each frame of its latent.
  int64_t frame_factor() const;
  void fields(Fields& f);
  bool operator==(const OpenSoraVaeSizes&) const = default;
};

/// One of models::Model::blocks.
struct OpenSoraVaeBlock {
  enum class Kind : uint8_t {
    Frames,  ///< of the autoencoder of frames: `of_frames`
    Input,   ///< fills a chunk up, and begins the encoder in time
    Resnet,
    Down,     ///< halves the frames
    Moments,  ///< ends the encoder: hidden -> moments and latent
    Latent,   ///< begins the decoder: latent -> hidden
    Up,       ///< doubles the frames
    Output,   ///< ends the decoder in time, and drops what filled the chunk up
  };
  Kind kind = Kind::Frames;
  bool decodes = false;
  int64_t times = 0;        ///< how often the frames of its input have been halved
  int64_t in = 0, out = 0;  ///< features
  std::string folder{};     ///< prefix of its parameters in the folder
  AutoencoderKlBlock of_frames{};
};

/// Returns the blocks of a model in their order.
std::vector<OpenSoraVaeBlock> open_sora_vae_blocks(const OpenSoraVaeSizes& sizes);

/// Returns the published folder OpenSora-VAE-v1.2: its keys and names. Its autoencoder of frames has the sizes of
/// SDXL's.
HuggingFace open_sora_vae_folder();

}  // namespace colossal::models
