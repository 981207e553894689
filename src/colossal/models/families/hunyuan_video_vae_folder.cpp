// The autoencoder of clips of HunyuanVideo as diffusers stores it.
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/diffusers_config.h"
#include "colossal/models/families/hunyuan_video_vae.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {

namespace hunyuan_video_vae {

constexpr const char* kClass = "AutoencoderKLHunyuanVideo";

void keys(FolderKeys& k, ModelShape& s, HunyuanVideoVaeSizes& own) {
  k.optional("in_channels", own.channels, 3);
  int64_t outputs = own.channels;
  k.optional("out_channels", outputs, 3);
  require(outputs == own.channels, "model", "out_channels must be in_channels: got ", outputs, " and ", own.channels);
  k.optional("latent_channels", own.latent_channels, 16);
  k.optional("block_out_channels", own.levels, {128, 256, 512, 512});
  require(!own.levels.empty() && own.levels.size() <= 16, "model", "block_out_channels must have 1 to 16 levels: got ",
          own.levels.size());
  const nlohmann::json down(std::vector<std::string>(own.levels.size(), "HunyuanVideoDownBlock3D")),
      up(std::vector<std::string>(own.levels.size(), "HunyuanVideoUpBlock3D"));
  k.fixed("down_block_types", down);
  k.fixed("up_block_types", up);
  k.optional("layers_per_block", own.resnets, 2);
  k.fixed("act_fn", "silu");
  k.optional("norm_num_groups", own.groups, 32);
  k.optional("scaling_factor", own.scaling, 0.476986);
  k.optional("spatial_compression_ratio", own.factor, 8);
  k.fixed("temporal_compression_ratio", 4);
  k.optional("mid_block_add_attention", own.attention, true);
  if (!k.reads()) return;
  own.height = own.width = own.factor;
  s.tied = false;
}

std::vector<nn::ExternalName> names(const ModelShape& shape) {
  constexpr const char* kBlocks = "blocks.";
  const FolderNames table{.outside = {{"input", {"encoder.conv_in.conv"}},
                                      {"norm", {"decoder.conv_norm_out"}},
                                      {"head", {"decoder.conv_out.conv"}}},
                          .blocks = kBlocks,
                          .in_block = {{"norm_1", {"norm1"}},
                                       {"conv_1", {"conv1.conv"}},
                                       {"norm_2", {"norm2"}},
                                       {"conv_2", {"conv2.conv"}},
                                       {"shortcut", {"conv_shortcut.conv"}},
                                       {"norm", {"norm"}},
                                       {"attention.qkv", {"to_q", "to_k", "to_v"}},
                                       {"attention.out", {"to_out.0"}},
                                       {"conv", {"conv.conv"}},
                                       {"quant", {"quant"}}}};
  std::vector<nn::ExternalName> found = names_in_folder(shape, table);
  const std::vector<HunyuanVideoVaeBlock> blocks = hunyuan_video_vae_blocks(shape.own.as<HunyuanVideoVaeSizes>());
  using Kind = HunyuanVideoVaeBlock::Kind;
  for (nn::ExternalName& name : found) {
    const std::optional<int64_t> index = models::block_of(name.ours, shape.layers);
    if (!index) continue;
    const HunyuanVideoVaeBlock& block = blocks.at(static_cast<size_t>(*index));
    for (nn::ExternalRows& part : name.parts) {
      part.name = part.name.substr(concat(kBlocks, *index, ".").size());
      const std::string layer = part.name.substr(0, part.name.rfind('.')), ending = part.name.substr(layer.size());
      if (layer == "quant")
        part.name = (block.decodes ? "post_quant_conv" : "quant_conv") + ending;
      else if (layer == "norm")
        part.name = block.folder + (block.kind == Kind::Attention ? "group_norm" : "conv_norm_out") + ending;
      else if (layer == "conv.conv" && block.kind == Kind::Moments)
        part.name = block.folder + "conv_out.conv" + ending;
      else if (layer == "conv.conv" && block.kind == Kind::Latent)
        part.name = block.folder + "conv_in.conv" + ending;
      else
        part.name = block.folder + part.name;
    }
  }
  return found;
}

nlohmann::json to_json(const ModelShape& shape) {
  nlohmann::json j{{"_class_name", kClass}, {"_diffusers_version", "0.42.1"}};
  FolderKeys k(j);
  ModelShape written = shape;
  auto own = shape.own.as<HunyuanVideoVaeSizes>();
  keys(k, written, own);
  return j;
}

ModelShape from_json(const nlohmann::json& config) {
  nlohmann::json known;  // the keys that are written are those that the class has
  FolderKeys writer(known);
  ModelShape example;
  HunyuanVideoVaeSizes sizes{.levels = {128}};
  keys(writer, example, sizes);
  check_diffusers_config(config, kClass, known);
  return settled(read_folder(FolderConfig(config, kClass), keys), "hunyuan_video_vae");
}

}  // namespace hunyuan_video_vae

Diffusers hunyuan_video_vae_folder() {
  return {.class_name = hunyuan_video_vae::kClass,
          .part = "vae",
          .names = hunyuan_video_vae::names,
          .from_json = hunyuan_video_vae::from_json,
          .to_json = hunyuan_video_vae::to_json};
}

}  // namespace colossal::models
