// The names of tensors in the files that the makers of Stable Diffusion 3 and FLUX publish, and those in the folders of
// diffusers.
//
//   sd3_places("joint_blocks.3.x_block.attn.proj.bias", 24);
//   // {{"transformer", "transformer_blocks.3.attn.to_out.0.bias"}}
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/checkpoint/ldm/names.h"

namespace colossal::checkpoint {

/// Return the places of a tensor of the transformer: several for matrices that the file has in one. A modulation with a
/// shift and a scale has its halves in the other order in diffusers, if it is that of the last norm or of the last
/// `context_block` of `blocks`. A name without a counterpart keeps its form, so that an import shows it as unexpected.
std::vector<LdmPlace> sd3_places(std::string name, int64_t blocks);
std::vector<LdmPlace> flux_places(std::string name);

}  // namespace colossal::checkpoint
