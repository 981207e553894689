// AutoencoderKL as diffusers stores it.
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/diffusers_config.h"
#include "colossal/models/families/autoencoder_kl.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {

namespace autoencoder_kl {

constexpr const char* kClass = "AutoencoderKL";

/// The row of the sides of training: one number, or height and width. Only tiles of diffusers depend on it, so sides
/// that are no whole cells are rounded up.
void sample_size_key(FolderKeys& k, AutoencoderKlSizes& own) {
  if (k.writes()) {
    const nlohmann::json sides{own.height, own.width};
    k.written("sample_size", own.height == own.width ? nlohmann::json(own.height) : sides);
    return;
  }
  if (k.config().has("sample_size") && k.config().at<nlohmann::json>("sample_size").is_array()) {
    const auto sides = k.config().at<std::vector<int64_t>>("sample_size");
    require(sides.size() == 2, "model", "sample_size must be a side, or a height and a width: got ", sides.size(),
            " numbers");
    own.height = sides[0], own.width = sides[1];
  } else {
    own.height = own.width = k.config().value<int64_t>("sample_size", 32);
  }
  for (int64_t* side : {&own.height, &own.width}) *side = (*side + own.factor() - 1) / own.factor() * own.factor();
}

void keys(FolderKeys& k, ModelShape& s, AutoencoderKlSizes& own) {
  k.optional("in_channels", own.channels, 3);
  int64_t outputs = own.channels;
  k.optional("out_channels", outputs, 3);
  require(outputs == own.channels, "model", "out_channels must be in_channels: got ", outputs, " and ", own.channels);
  k.optional("block_out_channels", own.levels, {64});
  require(!own.levels.empty() && own.levels.size() <= 16, "model", "block_out_channels must have 1 to 16 levels: got ",
          own.levels.size());
  const nlohmann::json down(std::vector<std::string>(own.levels.size(), "DownEncoderBlock2D")),
      up(std::vector<std::string>(own.levels.size(), "UpDecoderBlock2D"));
  k.fixed("down_block_types", down);
  k.fixed("up_block_types", up);
  k.optional("layers_per_block", own.resnets, 1);
  k.fixed("act_fn", "silu");
  k.optional("latent_channels", own.latent_channels, 4);
  k.optional("norm_num_groups", own.groups, 32);
  sample_size_key(k, own);
  k.optional("scaling_factor", own.scaling, 0.18215);
  if (k.reads() || own.shift != 0)
    k.optional("shift_factor", own.shift, 0);
  else
    k.written("shift_factor", nullptr);
  k.fixed("latents_mean", nullptr);  // of models whose channels are scaled one by one
  k.fixed("latents_std", nullptr);
  k.optional("force_upcast", own.force_upcast, true);
  k.optional("use_quant_conv", own.quant_conv, true);
  k.optional("use_post_quant_conv", own.post_quant_conv, true);
  k.optional("mid_block_add_attention", own.attention, true);
  if (k.reads()) s.tied = false;
}

}  // namespace autoencoder_kl

std::vector<nn::ExternalName> autoencoder_kl_in_block() {
  return {{"norm_1", {"norm1"}},
          {"conv_1", {"conv1"}},
          {"norm_2", {"norm2"}},
          {"conv_2", {"conv2"}},
          {"shortcut", {"conv_shortcut"}},
          {"norm", {"norm"}},
          {"attention.qkv", {"to_q", "to_k", "to_v"}},
          {"attention.out", {"to_out.0"}},
          {"conv", {"conv"}},
          {"quant", {"quant"}}};
}

std::string autoencoder_kl_tensor(const AutoencoderKlBlock& block, const std::string& tensor) {
  using Kind = AutoencoderKlBlock::Kind;
  const std::string layer = tensor.substr(0, tensor.rfind('.')), ending = tensor.substr(layer.size());
  if (layer == "quant") return (block.decodes ? "post_quant_conv" : "quant_conv") + ending;
  if (layer == "norm") return block.folder + (block.kind == Kind::Attention ? "group_norm" : "conv_norm_out") + ending;
  if (layer == "conv" && block.kind == Kind::Moments) return block.folder + "conv_out" + ending;
  if (layer == "conv" && block.kind == Kind::Latent) return block.folder + "conv_in" + ending;
  return block.folder + tensor;
}

std::vector<nn::ExternalName> autoencoder_kl_diffusers_names(const ModelShape& shape) {
  constexpr const char* kBlocks = "blocks.";
  const FolderNames names{
      .outside = {{"input", {"encoder.conv_in"}}, {"norm", {"decoder.conv_norm_out"}}, {"head", {"decoder.conv_out"}}},
      .blocks = kBlocks,
      .in_block = autoencoder_kl_in_block()};
  std::vector<nn::ExternalName> found = names_in_folder(shape, names);
  const std::vector<AutoencoderKlBlock> blocks = autoencoder_kl_blocks(shape.own.as<AutoencoderKlSizes>());
  for (nn::ExternalName& name : found) {
    const std::optional<int64_t> index = block_of(name.ours, shape.layers);
    if (!index) continue;
    for (nn::ExternalRows& part : name.parts)
      part.name = autoencoder_kl_tensor(blocks.at(*index), part.name.substr(concat(kBlocks, *index, ".").size()));
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> autoencoder_kl_old_endings() {
  std::vector<std::pair<std::string, std::string>> endings;
  for (const auto& [now, then] :
       {std::pair{"to_q", "query"}, {"to_k", "key"}, {"to_v", "value"}, {"to_out.0", "proj_attn"}})
    for (const char* tensor : {".weight", ".bias"})
      endings.emplace_back(concat("attentions.0.", now, tensor), concat("attentions.0.", then, tensor));
  return endings;
}

ModelShape autoencoder_kl_from_diffusers(const nlohmann::json& config) {
  nlohmann::json known;  // the keys that are written are those that the class has
  FolderKeys writer(known);
  ModelShape example;
  AutoencoderKlSizes sizes{.levels = {64}};
  autoencoder_kl::keys(writer, example, sizes);
  check_diffusers_config(config, autoencoder_kl::kClass, known);
  return settled(read_folder(FolderConfig(config, "AutoencoderKL"), autoencoder_kl::keys), "autoencoder_kl");
}

nlohmann::json autoencoder_kl_to_diffusers(const ModelShape& shape) {
  nlohmann::json j{{"_class_name", autoencoder_kl::kClass}, {"_diffusers_version", "0.42.1"}};
  FolderKeys k(j);
  ModelShape written = shape;
  auto own = shape.own.as<AutoencoderKlSizes>();
  autoencoder_kl::keys(k, written, own);
  return j;
}

}  // namespace colossal::models
