#include "colossal/checkpoint/ldm/module_names.h"

#include <algorithm>
#include <set>

#include "colossal/base/error.h"

namespace colossal::checkpoint {
namespace {

constexpr char kOfWeight[] = ".weight";

using Modules = std::set<std::string>;
using Strings = std::vector<std::string>;

/// Returns for how many numbers from 0 the folder has `begin`, the number, and `end`.
int64_t count_modules(const Modules& modules, const std::string& begin, const std::string& end) {
  int64_t number = 0;
  while (modules.contains(concat(begin, number, end))) ++number;
  return number;
}

/// Adds each of `ends` after `begin`.
void add_all(Strings& to, const std::string& begin, const Strings& ends) {
  for (const std::string& end : ends) to.push_back(begin + end);
}

Strings flux_modules(int64_t doubles, int64_t singles) {
  Strings all{"img_in", "txt_in", "final_layer.linear", "final_layer.adaLN_modulation.1"};
  for (const char* embedder : {"time_in.", "vector_in.", "guidance_in."})
    add_all(all, embedder, {"in_layer", "out_layer"});
  for (int64_t i = 0; i < doubles; ++i)
    for (const char* stream : {".img_", ".txt_"})
      add_all(all, concat("double_blocks.", i, stream), {"mod.lin", "attn.qkv", "attn.proj", "mlp.0", "mlp.2"});
  for (int64_t i = 0; i < singles; ++i)
    add_all(all, concat("single_blocks.", i, "."), {"linear1", "linear2", "modulation.lin"});
  return all;
}

Strings sd3_modules(int64_t blocks) {
  Strings all{"x_embedder.proj", "context_embedder", "final_layer.linear", "final_layer.adaLN_modulation.1"};
  for (const char* embedder : {"t_embedder.mlp.", "y_embedder.mlp."}) add_all(all, embedder, {"0", "2"});
  for (int64_t i = 0; i < blocks; ++i)
    for (const char* stream : {".x_block.", ".context_block."})
      add_all(all, concat("joint_blocks.", i, stream),
              {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "adaLN_modulation.1"});
  return all;
}

/// The modules of one block of a UNet, which may have a transformer of up to `depth` blocks.
void add_unet_block(Strings& all, const std::string& block, int64_t depth) {
  add_all(all, block + "0.", {"in_layers.2", "emb_layers.1", "out_layers.3", "skip_connection"});
  add_all(all, block + "1.", {"proj_in", "proj_out"});
  for (int64_t i = 0; i < depth; ++i) {
    const std::string inside = concat(block, "1.transformer_blocks.", i, ".");
    for (const char* attention : {"attn1.", "attn2."})
      add_all(all, inside + attention, {"to_q", "to_k", "to_v", "to_out.0"});
    add_all(all, inside + "ff.net.", {"0.proj", "2"});
  }
}

Strings unet_modules(const Modules& modules, int64_t levels, int64_t layers, int64_t depth) {
  Strings all{"input_blocks.0.0", "time_embed.0", "time_embed.2", "label_emb.0.0", "label_emb.0.2", "out.2"};
  for (int64_t i = 0; i < levels * (layers + 1); ++i) {
    if (i > 0) add_unet_block(all, concat("input_blocks.", i, "."), depth);
    if (i > 0 && i % (layers + 1) == 0) all.push_back(concat("input_blocks.", i, ".0.op"));
    add_unet_block(all, concat("output_blocks.", i, "."), depth);
    const bool attends =
        modules.contains(concat("up_blocks.", i / (layers + 1), ".attentions.", i % (layers + 1), ".proj_in"));
    if (i % (layers + 1) == layers) all.push_back(concat("output_blocks.", i, attends ? ".2.conv" : ".1.conv"));
  }
  add_unet_block(all, "middle_block.", depth);
  add_all(all, "middle_block.2.", {"in_layers.2", "emb_layers.1", "out_layers.3"});
  return all;
}

/// Returns the most blocks that a transformer of a UNet has.
int64_t deepest(const Modules& modules) {
  int64_t depth = 0;
  for (const std::string& module : modules) {
    const std::string end = concat(".transformer_blocks.", depth, ".attn1.to_q");
    if (module.ends_with(end))
      depth =
          count_modules(modules, module.substr(0, module.size() - end.size()) + ".transformer_blocks.", ".attn1.to_q");
  }
  return depth;
}

}  // namespace

std::map<std::string, std::vector<LdmPlace>> ldm_modules(const std::vector<std::string>& names) {
  const Modules modules(names.begin(), names.end());
  const int64_t blocks = count_modules(modules, "transformer_blocks.", ".attn.add_q_proj"),
                singles = count_modules(modules, "single_transformer_blocks.", ".proj_mlp"),
                levels = count_modules(modules, "down_blocks.", ".resnets.0.conv1");
  LdmSizes sizes;
  Strings theirs;
  if (levels > 0) {
    sizes.unet_levels = levels;
    sizes.unet_layers = count_modules(modules, "down_blocks.0.resnets.", ".conv1");
    theirs = unet_modules(modules, levels, sizes.unet_layers, deepest(modules));
  } else if (singles > 0) {
    sizes.double_blocks = blocks;
    theirs = flux_modules(blocks, singles);
  } else if (blocks > 0) {
    sizes.joint_blocks = blocks;
    theirs = sd3_modules(blocks);
  }
  std::map<std::string, std::vector<LdmPlace>> found;
  for (const std::string& module : theirs) {
    std::vector<LdmPlace> places = ldm_places(concat(kLdmDenoiser, module, kOfWeight), sizes);
    for (LdmPlace& place : places) place.name.resize(place.name.size() - std::string_view(kOfWeight).size());
    if (std::all_of(places.begin(), places.end(), [&](const LdmPlace& one) { return modules.contains(one.name); }))
      found.emplace(module, std::move(places));
  }
  return found;
}

}  // namespace colossal::checkpoint
