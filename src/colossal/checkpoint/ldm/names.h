// The names of tensors in the one file of a model that the makers of latent diffusion publish ("LDM", CompVis and
// Stability AI), and those in the folders of diffusers and transformers.
//
//   const LdmSizes sizes = ldm_sizes(names);
//   ldm_places("model.diffusion_model.input_blocks.1.0.in_layers.2.weight", sizes);
//   // {{"unet", "down_blocks.0.resnets.0.conv1.weight"}}
//   ldm_places("cond_stage_model.model.transformer.resblocks.0.attn.in_proj_bias", sizes);
//   // {{"text_encoder", "text_model.encoder.layers.0.self_attn.q_proj.bias", 0}, {..., 1}, {..., 2}}
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::checkpoint {

/// The names of a denoiser begin so; in some files of FLUX alone they do not.
inline constexpr char kLdmDenoiser[] = "model.diffusion_model.";

/// Numbers that the names of a file depend on.
struct LdmSizes {
  int64_t unet_levels = 0;    ///< levels of the UNet
  int64_t unet_layers = 0;    ///< ResNet blocks of a level on the way down
  int64_t vae_levels = 0;     ///< levels of the VAE
  int64_t text_blocks = 0;    ///< blocks of OpenCLIP; 0 = the text encoder is CLIP-L
  int64_t joint_blocks = 0;   ///< blocks of the transformer of Stable Diffusion 3; 0 = another denoiser
  int64_t double_blocks = 0;  ///< double blocks of FLUX or Open-Sora 2; 0 = another denoiser
  bool reads_given = false;   ///< the denoiser reads given frames, so it is that of Open-Sora 2
  /// Names of the denoiser begin with it; "" in FLUX's own files
  std::string denoiser = "model.diffusion_model.";
  /// Names of the VAE begin with it; "vae." in some files of FLUX, and "" in some files of a VAE
  std::string vae = "first_stage_model.";
  bool operator==(const LdmSizes&) const = default;
};

/// Returns the sizes that the names of all tensors of a file show.
LdmSizes ldm_sizes(const std::vector<std::string>& names);

/// The rows of a tensor of the file that one of the folder has: `count` of `of` equal parts, from part `first` on.
struct LdmRows {
  int64_t first = 0, count = 1, of = 1;
  bool swapped = false;     ///< the second half of them comes first in the folder
  bool transposed = false;  ///< rows of the file's matrix are columns in the folder
  bool operator==(const LdmRows&) const = default;
};

/// The place of a tensor in a folder of diffusers.
struct LdmPlace {
  std::string part;  ///< "unet", "transformer", "vae", "text_encoder", "text_encoder_2" or "text_encoder_3"
  std::string name;  ///< the tensor in the folder of the part
  LdmRows rows{};    ///< rows of the file's tensor that it has
  bool operator==(const LdmPlace&) const = default;
};

/// Returns the places of a tensor: one, several for matrices that the file has in one, or none for tensors that no part
/// uses. These are averages of weights (model_ema), tables of noise, losses, and what Stable Diffusion 2 does not use
/// of OpenCLIP: its last block and projection. SDXL's second text encoder is a whole OpenCLIP, with its projection. The
/// projection of CLIP-L is not used in files of Stable Diffusion 3 and FLUX (LdmWeights). A
/// name of a part that has no counterpart in diffusers keeps its form, so that an import shows it as unexpected.
/// Open-Sora 2, which is no model of diffusers, keeps all names. The matrices of the VAE's attention are convolutions
/// [C, C, 1, 1] in the file and [C, C] in the folder.
std::vector<LdmPlace> ldm_places(const std::string& name, const LdmSizes& sizes);

}  // namespace colossal::checkpoint
