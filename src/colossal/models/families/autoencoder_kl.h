// AutoencoderKL, the autoencoder of latent diffusion models (Rombach et al. 2021, arXiv:2112.10752): pictures become
// latents of fewer cells, and latents become pictures. Its own keys, its blocks, and its form in diffusers.
//
//   const ModelShape shape = built_in().resolve({.name = "autoencoder-kl-tiny"});
//   const at::Tensor moments = models::moments_of(model, pixels);      // models/autoencoder.h
//
// It is an autoencoder (models/autoencoder.h). The first blocks encode, the last decode; each ResNet, each attention
// and each resampling layer is a block. Downsampling pads below and right alone. It runs with whole pictures on each
// rank: under data parallelism, ZeRO and pipelines, with recomputed blocks and memory tiers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

/// The sizes of an AutoencoderKL. The model takes pictures of any size; `height` and `width` are those of training and
/// of plans.
struct AutoencoderKlSizes {
  int64_t height = 0, width = 0;
  int64_t channels = 3;
  std::vector<int64_t> levels{};  ///< channels of each level; sides halve from one to the next
  int64_t resnets = 2;            ///< of each level of the encoder; a level of the decoder has one more
  int64_t latent_channels = 4;
  int64_t groups = 32;            ///< of each norm
  double scaling = 1, shift = 0;  ///< of latents that a denoiser reads (AutoencoderSizes)
  bool quant_conv = true, post_quant_conv = true;
  bool attention = true;     ///< of one head, between the ResNets at the smallest size
  bool force_upcast = true;  ///< for folders: numbers may exceed fp16 (FloatRange)

  /// Returns the pixels of a side for each cell of a latent.
  int64_t factor() const { return int64_t{1} << (static_cast<int64_t>(levels.size()) - 1); }
  void fields(Fields& f);
  bool operator==(const AutoencoderKlSizes&) const = default;
};

/// Part of the shape of a model of clips: the autoencoder of their frames, which it has within it.
struct FrameAutoencoder {
  AutoencoderKlSizes sizes{};  ///< without levels = the model has none
};

/// One of models::Model::blocks.
struct AutoencoderKlBlock {
  enum class Kind : uint8_t {
    Resnet,
    Attention,
    Down,     ///< halves the sides
    Moments,  ///< ends the encoder: hidden -> moments and latent
    Latent,   ///< begins the decoder: latent -> hidden
    Up,       ///< doubles the sides
  };
  Kind kind = Kind::Resnet;
  bool decodes = false;
  int64_t level = 0;        ///< of its input
  int64_t in = 0, out = 0;  ///< features of hidden states; those of a latent where the block has none
  std::string folder{};     ///< prefix of its parameters in diffusers' folder

  /// Returns the level of its result.
  int64_t level_after() const { return level + (kind == Kind::Down ? 1 : kind == Kind::Up ? -1 : 0); }
};

/// Returns the blocks of a model in their order.
std::vector<AutoencoderKlBlock> autoencoder_kl_blocks(const AutoencoderKlSizes& sizes);

/// Returns the moments [..., 2 C] of what the last layer of the encoder gives: in fp32 at least, the log-variance
/// within its limits.
at::Tensor autoencoder_kl_moments(const at::Tensor& x);

// The form of diffusers' AutoencoderKL (0.42.1): the folder `vae` of a pipeline.

/// Returns the place of each parameter in diffusers' folder.
std::vector<nn::ExternalName> autoencoder_kl_diffusers_names(const ModelShape& shape);
/// Returns the rows of the layers of a block, for FolderNames::in_block.
std::vector<nn::ExternalName> autoencoder_kl_in_block();
/// Returns the name in the folder of a tensor of that block, whose name in the block those rows gave.
std::string autoencoder_kl_tensor(const AutoencoderKlBlock& block, const std::string& tensor);
/// Returns endings of names, each with the ending that folders of older versions have instead: they call the
/// projections of the attention query, key, value and proj_attn.
std::vector<std::pair<std::string, std::string>> autoencoder_kl_old_endings();
/// Returns the shape that a config.json of diffusers describes. The sides of training are those of sample_size, rounded
/// up to whole cells. Keys that begin with `_` are ignored. Norms have statistics in fp32 whatever force_upcast says.
/// Errors ("model"): a key that this class of diffusers does not have; a value with which the model computes other
///                   numbers; another class. Exceptions of nlohmann::json for a missing key.
ModelShape autoencoder_kl_from_diffusers(const nlohmann::json& config);
/// Returns the config.json with which diffusers computes the same.
nlohmann::json autoencoder_kl_to_diffusers(const ModelShape& shape);

}  // namespace colossal::models
