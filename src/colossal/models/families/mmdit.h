// The multimodal diffusion transformers (MMDiT) of Stable Diffusion 3 (arXiv:2403.03206), of FLUX, and of Open-Sora 2
// for clips (arXiv:2503.09642): they predict the flow of a latent, or what else their objective asks for, from the
// noised latent, the time, the states of a caption and one state of the whole caption. Their own keys, their forms in
// diffusers, and the folder of Open-Sora 2.
//
//   const ModelShape shape = built_in().resolve({.name = "flux-tiny"});
//   const at::Tensor predicted = models::predicted_picture(shape, end[0], *step.batch);  // [B, outputs, height, width]
//
// They are denoisers (models/denoiser.h). In a double block, words and patches have layers of their own (streams) and
// attend to each other as one sequence, words first; in a single block, which only FLUX has, they share the layers, and
// attention and feed-forward layer stand side by side. Before the first step the prediction is 0. The models have no
// head. The patches of all frames of a clip are one sequence. A model of clips also reads given frames, by a layer that
// starts at 0.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"
#include "colossal/nn/external_name.h"

namespace colossal::models {

/// The sizes of an MMDiT; the defaults are those of Stable Diffusion 3 medium. ModelShape::layers counts double and
/// single blocks. The model takes pictures or clips of any sizes; patches at the edges are padded.
struct MmditSizes {
  int64_t height = 128, width = 128;  ///< cells of the latents for which the model is made
  int64_t channels = 16;
  int64_t patch = 2;
  int64_t text = 4096;        ///< features of the states of a caption
  int64_t text_tokens = 333;  ///< usual number of them; a batch may have another
  int64_t pooled = 2048;      ///< features of the state of a whole caption
  int64_t single = 0;         ///< single blocks, the last of the layers
  int64_t table = 192;  ///< side of the table of positions, in patches, of which a picture has the middle; 0 = none
  std::vector<int64_t> axes{};  ///< features of a head that turn by frame, row and column; empty = none turn
  bool head_norms = false;      ///< RMSNorms of queries and keys
  bool told_guidance = false;   ///< the model is told the strength of guidance
  int64_t frames = 0;           ///< length of the clips for which the model is made; others may differ; 0 = pictures
  void fields(Fields& f);
  bool operator==(const MmditSizes&) const = default;
};

/// Returns the own sizes of FLUX.1 schnell. FLUX.1 dev is also told the strength of guidance, and has captions of 512
/// tokens.
MmditSizes flux_sizes();

/// Returns the own sizes of Open-Sora 2, for latents of 129 frames of 1024 x 576 pixels.
MmditSizes open_sora_sizes();

// The forms of diffusers' SD3Transformer2DModel and FluxTransformer2DModel (0.42.1): the folder `transformer` of a
// pipeline.

/// Returns the place of each parameter in diffusers' folder, and that of the table of positions.
std::vector<nn::ExternalName> sd3_diffusers_names(const ModelShape& shape);
std::vector<nn::ExternalName> flux_diffusers_names(const ModelShape& shape);
/// Returns the shape that a config.json of diffusers describes. Keys that begin with `_` are ignored.
/// Errors ("model"): a key that this class of diffusers does not have; a value with which the model computes other
///                   numbers; another class.
ModelShape sd3_from_diffusers(const nlohmann::json& config);
ModelShape flux_from_diffusers(const nlohmann::json& config);
/// Returns the config.json with which diffusers computes the same. Errors ("model"): a shape that it cannot compute:
/// frames, other ffn than 4 * hidden, another epsilon than 1e-6; of SD3 pictures that are not square, no table, single
/// blocks, axes, or guidance that it is told; of FLUX another patch than 2, a table, no single blocks, no norms of
/// heads, or another number of axes than three.
nlohmann::json sd3_to_diffusers(const ModelShape& shape);
nlohmann::json flux_to_diffusers(const ModelShape& shape);

/// Returns the form of Open-Sora 2: the names in its published file, and a config.json with the keys of its MMDiTConfig
/// and `model_type` "MMDiT". It has queries, keys and values in matrices of their own, and turns the features of a head
/// in pairs of its two halves, over all axes.
HuggingFace open_sora_folder();

}  // namespace colossal::models
