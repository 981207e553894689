// DiT, the diffusion transformer (arXiv:2212.09748): it predicts the noise of a picture, or what else its objective
// asks for, from the noised picture, the time and the class. Its own keys, and its form in diffusers.
//
//   const ModelShape shape = built_in().resolve({.name = "dit-tiny"});
//   const at::Tensor predicted = models::predicted_picture(shape, end[0]);    // [B, outputs, height, width]
//
// It is a denoiser (models/denoiser.h). With learned_sigma the first C channels of the prediction are the target, the
// others the interpolation of the variance (arXiv:2102.09672). Before the first step the prediction is 0. The model has
// no head.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"
#include "colossal/nn/patches.h"

namespace colossal::models {

/// The sizes of a DiT. Cells are pixels, or those of a latent.
struct DitSizes {
  int64_t height = 0, width = 0, channels = 0, patch = 0, classes = 0;
  std::vector<std::string> class_names{};
  bool learned_sigma = false;
  int64_t freq_shift = 1;     ///< SinusoidOptions::shift of times: 1 in diffusers, 0 in the paper's own code
  double mlp_epsilon = 1e-6;  ///< of the norm before the feed-forward layer
  /// Returns the number of channels that the model predicts.
  int64_t outputs() const { return learned_sigma ? 2 * channels : channels; }
  /// Returns the patches that the model reads, and with outputs() channels those that it predicts.
  nn::PatchShape patches(int64_t of_channels) const { return {of_channels, height, width, patch, 0}; }
  void fields(Fields& f);
  bool operator==(const DitSizes&) const = default;
};

// The form of diffusers' DiTTransformer2DModel (0.42.1): the folder `transformer` of a pipeline. Its model has the
// embedders of time and class in every block, and computes with those of each block; a DiT has one of each.

/// Returns the place of each parameter in diffusers' folder: the embedders are those of block 0.
std::vector<nn::ExternalName> dit_diffusers_names(const ModelShape& shape);
/// Returns the embedders of the other blocks, which an import must find equal, and an export must write.
std::vector<nn::ExternalCopy> dit_diffusers_copies(const ModelShape& shape);
/// Returns the shape that a config.json of diffusers describes, with a freq_shift of 1, and without names of classes.
/// Keys that begin with `_` are ignored.
/// Errors ("model"): a key that this class of diffusers does not have; a value with which a DiT computes other numbers;
///                   another class. Exceptions of nlohmann::json for a missing key.
ModelShape dit_from_diffusers(const nlohmann::json& config);
/// Returns the config.json with which diffusers computes the same. Errors ("model"): a shape that it cannot compute:
/// another freq_shift than 1, another epsilon than 1e-6 of the first norm, pictures that are not square, other ffn than
/// 4 * hidden.
nlohmann::json dit_to_diffusers(const ModelShape& shape);

}  // namespace colossal::models
