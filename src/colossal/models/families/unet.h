// The UNet of Stable Diffusion 1.5 and 2.1 (arXiv:2112.10752) and of SDXL (arXiv:2307.01952): it predicts the noise of
// a latent, or what else its objective asks for, from the noised latent, the time and the states of a text encoder;
// SDXL's also from one state of the whole text and the sizes of the picture. Its own keys, and its form in diffusers.
//
//   const ModelShape shape = built_in().resolve({.name = "sd-1.5-tiny"});
//   const at::Tensor predicted = models::predicted_picture(shape, end[0], *step.batch);  // [B, outputs, height, width]
//
// It is a denoiser (models/denoiser.h). Its levels halve the picture, rounded up, and its second half goes back through
// them; so it takes pictures of any height and width. What the first half makes of a level waits as a state of its own
// (a skip) until the second half reads it. Before the first step the prediction is 0. The model has no head.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

/// The sizes of a UNet. Lists have an entry for each level, the largest pictures first.
struct UnetSizes {
  int64_t height = 64, width = 64;  ///< cells of the latents for which the model is made; it takes others, too
  int64_t channels = 4, outputs = 4;
  std::vector<int64_t> features{320, 640, 1280, 1280};
  int64_t resnets = 2;  ///< of a level on the way down; one more on the way up
  /// Layers of the transformer that follows each ResNet of a level; 0 = none does. The last is also that of the middle,
  /// which always has one layer or more
  std::vector<int64_t> transformers{1, 1, 1, 0};
  std::vector<int64_t> attention_heads{8, 8, 8, 8};  ///< the last is also that of the middle, which always attends
  int64_t text = 768;                                ///< features of the text states
  int64_t pooled = 0;  ///< features of the one state of a whole text that it also reads, with sizes; 0 = neither
  int64_t size_features = 256;     ///< sinusoids of each of the kPictureSizes numbers, of a model with `pooled`
  bool linear_projection = false;  ///< transformers begin and end with linear layers, not with 1 x 1 convolutions
  int64_t groups = 32;             ///< of each GroupNorm
  std::string target = "epsilon";  ///< default of [diffusion] target: "epsilon" or "v"
  bool upcast_attention = false;   ///< for folders only: whether diffusers is to compute scores in fp32, as done here
  void fields(Fields& f);
  bool operator==(const UnetSizes&) const = default;
};

// The form of diffusers' UNet2DConditionModel (0.42.1): the folder `unet` of a pipeline.

/// Returns the place of each parameter in diffusers' folder.
std::vector<nn::ExternalName> unet_diffusers_names(const ModelShape& shape);
/// Returns the shape that a config.json of diffusers describes. Its target is "epsilon", because the folder of the
/// scheduler has it. Keys that begin with `_` are ignored.
/// Errors ("model"): a key that this class of diffusers does not have; a value with which a UNet computes other
///                   numbers; another class.
ModelShape unet_from_diffusers(const nlohmann::json& config);
/// Returns the config.json with which diffusers computes the same.
nlohmann::json unet_to_diffusers(const ModelShape& shape);

}  // namespace colossal::models
