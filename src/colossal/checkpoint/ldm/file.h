// A makers' single file in place of the folder of a pipeline. The path of a part is that of the file and the name of
// the part, so that it can be used like the folder of a part:
//
//   ldm_part("v1-5-pruned.safetensors/vae");               // {"v1-5-pruned.safetensors", "vae"}
//   ldm_part("v1-5-pruned.safetensors");                   // {"v1-5-pruned.safetensors", "unet"}
//   ldm_part("vae-ft-mse-840000-ema-pruned.safetensors");  // {..., "vae"}: a file of a VAE alone
//   checkpoint::read_config("v1-5-pruned.safetensors/vae")     // ldm_config() of that part
//   checkpoint::open_weights("v1-5-pruned.safetensors/vae")    // LdmWeights of that part
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace colossal::checkpoint {

/// A part of a file: "unet" or "transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3" or "scheduler".
struct LdmPart {
  std::string file, part;
};

/// Returns true for a safetensors file that stands for a pipeline: one with the names of LDM and a UNet,
/// `model.diffusion_model.*`, or with the transformer of Stable Diffusion 3 or FLUX and parts beside it. A transformer
/// alone is a model.
bool is_ldm_file(const std::string& path);

/// Returns the part that a path means: the UNet or transformer for the path of a file, and the VAE for that of a file
/// which has it alone; none = the path is no such file or part of one.
std::optional<LdmPart> ldm_part(const std::string& path);

/// Returns true if the file has tensors of the part. A scheduler has none.
bool has_ldm_part(const LdmPart& part);

/// Returns the config.json that the folder of a part of diffusers or transformers has, and for the transformer of
/// Open-Sora 2 that of its family (models/families/mmdit.h). Sizes follow from the shapes of tensors. What these do not
/// show is that of Stable Diffusion 1.5, and for a UNet with linear projections that of 2.1: heads, activation, and the
/// size of pictures. Heads of Stable Diffusion 3 have 64 features; of a head of FLUX or Open-Sora 2 an eighth of the
/// features turns by frame, and as many of the others by row as by column. The scheduler of 1.5 is PNDM with predicted
/// noise, that of 2.1 DDIM with target v, or if the file counts 875,000 steps, as that of the base model of 2 does,
/// with predicted noise. A UNet that is also told a pooled text is that of SDXL: heads of 64 features, and Euler steps
/// with predicted noise. A flow has the shift 3; that of FLUX dev follows the picture, and that of schnell is 1.
/// Errors ("ldm"): a part whose tensors are not in the file.
nlohmann::json ldm_config(const LdmPart& part);

}  // namespace colossal::checkpoint
