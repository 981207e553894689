// The names that modules of a denoiser have in a makers' single file, for adapters of programs that keep these names.
//
//   const auto modules = ldm_modules({"transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_k", ...});
//   modules.at("double_blocks.0.img_attn.qkv");
//   // {{"transformer", "transformer_blocks.0.attn.to_q", {0, 1, 3}}, {..., {1, 1, 3}}, {..., {2, 1, 3}}}
#pragma once
#include <map>
#include <string>
#include <vector>

#include "colossal/checkpoint/ldm/names.h"

namespace colossal::checkpoint {

/// Returns the places of each module of the makers' file of a model whose folder of diffusers has `modules`, by its
/// name there. LdmPlace::name is a module of the folder, and LdmPlace::rows the outputs of the file's module that it
/// has. Modules without a counterpart are left out. Known are UNets, Stable Diffusion 3 and FLUX; for other models the
/// result is empty.
std::map<std::string, std::vector<LdmPlace>> ldm_modules(const std::vector<std::string>& modules);

}  // namespace colossal::checkpoint
