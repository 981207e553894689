// The autoencoder of clips of HunyuanVideo (arXiv:2412.03603), which Open-Sora 2 uses too: clips of 4 k + 1 frames
// become latents of k + 1 frames and of fewer cells. Its own keys, its blocks, and its form in diffusers.
//
//   const ModelShape shape = built_in().resolve({.name = "hunyuan-video-vae-tiny"});
//   const at::Tensor moments = models::moments_of_clips(model, pixels);      // models/autoencoder_clips.h
//
// It is an autoencoder (models/autoencoder.h), of clips. Its convolutions of 3 x 3 x 3 are causal in time and repeat
// the edges of the clip. The first frame stays alone when frames are joined or doubled. A cell attends to all cells of
// its frame and of earlier ones. Norms read all frames of a clip. It runs with whole clips on each rank: under data
// parallelism, ZeRO and pipelines, with recomputed blocks and memory tiers.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"

namespace colossal::models {

/// The sizes of the autoencoder. It takes clips of any size; `frames`, `height` and `width` are those of training and
/// of plans.
struct HunyuanVideoVaeSizes {
  int64_t frames = 1, height = 0, width = 0;
  int64_t channels = 3;
  std::vector<int64_t> levels{};  ///< features of each level
  int64_t resnets = 2;            ///< of each level of the encoder; a level of the decoder has one more
  int64_t latent_channels = 16;
  int64_t groups = 32;        ///< of each norm
  double scaling = 0.476986;  ///< of latents that a denoiser reads (AutoencoderSizes)
  int64_t factor = 8;         ///< pixels of a side for each cell of a latent
  bool attention = true;      ///< of one head, between the ResNets at the smallest size

  void fields(Fields& f);
  bool operator==(const HunyuanVideoVaeSizes&) const = default;
};

/// One of models::Model::blocks.
struct HunyuanVideoVaeBlock {
  enum class Kind : uint8_t {
    Resnet,
    Attention,
    Down,     ///< halves the sides, the frames, or both
    Moments,  ///< ends the encoder: hidden -> moments and latent
    Latent,   ///< begins the decoder: latent -> hidden
    Up,       ///< doubles the sides, the frames, or both
  };
  Kind kind = Kind::Resnet;
  bool decodes = false;
  int64_t sides = 0, times = 0;             ///< how often sides and frames of its input have been halved
  int64_t in = 0, out = 0;                  ///< features of hidden states; those of a latent where the block has none
  std::string folder{};                     ///< prefix of its parameters in diffusers' folder
  bool of_sides = false, of_times = false;  ///< what it halves or doubles
};

/// Returns the blocks of a model in their order.
std::vector<HunyuanVideoVaeBlock> hunyuan_video_vae_blocks(const HunyuanVideoVaeSizes& sizes);

/// Returns diffusers' folder of the class AutoencoderKLHunyuanVideo (0.42.1): the folder `vae` of a pipeline. Its
/// config has no sizes of training, so a shape that is read has clips of one cell of a latent and one frame.
Diffusers hunyuan_video_vae_folder();

}  // namespace colossal::models
