// The UNet as diffusers stores it.
#include <algorithm>
#include <cstring>
#include <optional>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/diffusers_config.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/unet_parts.h"

namespace colossal::models {

namespace unet {

constexpr const char *kClass = "UNet2DConditionModel", *kSampleSize = "sample_size", *kHeads = "attention_head_dim",
                     *kLayers = "transformer_layers_per_block", *kUpcast = "upcast_attention";

/// A key whose value is a list, or one number for all of `size`.
void number_or_list(FolderKeys& k, const char* key, std::vector<int64_t>& list, int64_t otherwise, size_t size) {
  const bool is_uniform = std::adjacent_find(list.begin(), list.end(), std::not_equal_to<>()) == list.end();
  if (k.writes()) return k.written(key, is_uniform ? nlohmann::json(list.front()) : nlohmann::json(list));
  if (k.config().has(key) && k.config().at<nlohmann::json>(key).is_array())
    list = k.config().at<std::vector<int64_t>>(key);
  else
    list.assign(size, k.config().value(key, otherwise));
}

/// The latents for which the model is made: a number, or height and width.
void sample_size_key(FolderKeys& k, UnetSizes& own) {
  std::vector<int64_t> sides{own.height, own.width};
  number_or_list(k, kSampleSize, sides, UnetSizes().height, 2);
  require(sides.size() == 2, "model", kSampleSize, " must be a number, or a height and a width: got ", sides.size(),
          " numbers");
  own.height = sides[0], own.width = sides[1];
}

/// The classes of the levels, down and up.
void level_keys(FolderKeys& k, UnetSizes& own) {
  constexpr const char *kDown = "down_block_types", *kUp = "up_block_types";
  std::vector<std::string> down, up;
  for (const int64_t transformers : own.transformers) {
    down.emplace_back(transformers > 0 ? "CrossAttnDownBlock2D" : "DownBlock2D");
    up.emplace(up.begin(), transformers > 0 ? "CrossAttnUpBlock2D" : "UpBlock2D");
  }
  k.optional(kDown, down, down);  // the defaults are those of a new UnetSizes
  k.optional(kUp, up, up);
  std::vector<int64_t> layers = own.transformers;  // the class counts layers of levels that have none
  std::replace(layers.begin(), layers.end(), 0, 1);
  number_or_list(k, kLayers, layers, 1, down.size());
  if (!k.reads()) return;
  require(layers.size() == down.size(), "model", kLayers, " must be a number, or one for each of the ", down.size(),
          " levels: got ", layers.size(), " numbers");
  own.transformers.clear();
  for (const std::string& name : down) {
    require(name == "CrossAttnDownBlock2D" || name == "DownBlock2D", "model", kDown,
            " must be CrossAttnDownBlock2D or DownBlock2D: got ", name);
    const size_t level = own.transformers.size();
    own.transformers.push_back(name == "DownBlock2D" ? 0 : layers.at(level));
  }
  require(down.empty() || down.back() != "DownBlock2D" || layers.back() == 1, "model", kLayers,
          " must be 1 for a last level of the class DownBlock2D, as the transformer in the middle has as many: got ",
          layers.empty() ? 0 : layers.back());
  for (size_t i = 0; i < std::max(up.size(), down.size()); ++i) {
    const char* const wanted =
        i < down.size() && own.transformers[down.size() - 1 - i] > 0 ? "CrossAttnUpBlock2D" : "UpBlock2D";
    require(i < std::min(up.size(), down.size()) && up[i] == wanted, "model", kUp, " must be those of ", kDown,
            " in the other order: got ", i < up.size() ? up[i] : "none", " as number ", i, ", which must be ",
            i < down.size() ? wanted : "left out");
  }
}

/// The keys with one value: others make another model.
void fixed_keys(FolderKeys& k) {
  k.fixed("center_input_sample", false);
  k.fixed("flip_sin_to_cos", true);
  k.fixed("freq_shift", 0);
  k.fixed("mid_block_type", "UNetMidBlock2DCrossAttn");
  k.fixed("only_cross_attention", false);
  k.fixed("downsample_padding", 1);
  k.fixed("mid_block_scale_factor", 1);
  k.fixed("dropout", 0.0);
  k.fixed("act_fn", "silu");
  k.fixed("dual_cross_attention", false);
  k.fixed("resnet_time_scale_shift", "default");
  k.fixed("resnet_skip_time_act", false);
  k.fixed("resnet_out_scale_factor", 1.0);
  k.fixed("time_embedding_type", "positional");
  k.fixed("conv_in_kernel", 3);
  k.fixed("conv_out_kernel", 3);
  k.fixed("attention_type", "default");
  k.fixed("class_embeddings_concat", false);
  for (const char* key :
       {"reverse_transformer_layers_per_block", "encoder_hid_dim", "encoder_hid_dim_type", "num_attention_heads",
        "class_embed_type", "num_class_embeds", "time_embedding_dim", "time_embedding_act_fn", "timestep_post_act",
        "time_cond_proj_dim", "mid_block_only_cross_attention", "cross_attention_norm"})
    k.fixed(key, nullptr);
  k.written("addition_embed_type_num_heads", 64);  // of an addition_embed_type alone
}

/// What SDXL is told in addition: the pooled text and the sizes of the picture.
void addition_keys(FolderKeys& k, UnetSizes& own) {
  constexpr const char *kType = "addition_embed_type", *kSizes = "addition_time_embed_dim",
                       *kInputs = "projection_class_embeddings_input_dim";
  if (k.writes()) {
    const bool has = own.pooled > 0;
    k.written(kType, has ? nlohmann::json("text_time") : nlohmann::json());
    k.written(kSizes, has ? nlohmann::json(own.size_features) : nlohmann::json());
    k.written(kInputs, has ? nlohmann::json(own.pooled + kPictureSizes * own.size_features) : nlohmann::json());
    return;
  }
  k.config().must_be_one_of(kType, {"text_time"});
  if (!k.config().has(kType)) {
    for (const char* key : {kSizes, kInputs})
      require(!k.config().has(key), "model", key, " must be null without ", kType, "; remove one of both");
    return;
  }
  for (const char* key : {kSizes, kInputs})
    require(k.config().has(key), "model", key, " must have a number with ", kType, ": got none");
  own.size_features = k.config().at<int64_t>(kSizes);
  const auto inputs = k.config().at<int64_t>(kInputs);
  require(own.size_features > 0, "model", kSizes, " must be positive: got ", own.size_features);
  require(inputs > 0 && own.size_features <= (inputs - 1) / kPictureSizes, "model", kInputs, " must be more than ",
          kPictureSizes, " times ", kSizes, ", because the pooled text takes the rest: got ", inputs, " and ",
          own.size_features);
  own.pooled = inputs - kPictureSizes * own.size_features;
}

void keys(FolderKeys& k, ModelShape& s, UnetSizes& own) {
  const UnetSizes standard;
  sample_size_key(k, own);
  k.optional("in_channels", own.channels, standard.channels);
  k.optional("out_channels", own.outputs, standard.outputs);
  k.optional("block_out_channels", own.features, standard.features);
  k.optional("layers_per_block", own.resnets, standard.resnets);
  level_keys(k, own);
  number_or_list(k, kHeads, own.attention_heads, 8, own.features.size());
  k.optional("cross_attention_dim", own.text, 1280);
  k.optional("norm_num_groups", own.groups, standard.groups);
  k.optional("norm_eps", s.norm_epsilon, 1e-5);
  k.optional("use_linear_projection", own.linear_projection, false);
  k.optional(kUpcast, own.upcast_attention, false);
  addition_keys(k, own);
  fixed_keys(k);
}

/// Puts the number of a transformer's layer in place of that of the first one.
void name_layer(std::string& name, int64_t layer) {
  constexpr const char* kFirst = "transformer_blocks.0.";
  if (const size_t at = name.find(kFirst); at != std::string::npos)
    name.replace(at, std::strlen(kFirst), concat("transformer_blocks.", layer, "."));
}

/// Names of layers after the prefix of a part.
std::vector<nn::ExternalName> layers_of_parts() {
  return {{"norm_1", {"norm1"}},
          {"conv_1", {"conv1"}},
          {"time", {"time_emb_proj"}},
          {"norm_2", {"norm2"}},
          {"conv_2", {"conv2"}},
          {"shortcut", {"conv_shortcut"}},
          {"conv", {"conv"}},
          {"norm", {"norm"}},
          {"proj_in", {"proj_in"}},
          {"attention.norm", {"transformer_blocks.0.norm1"}},
          {"attention.qkv",
           {"transformer_blocks.0.attn1.to_q", "transformer_blocks.0.attn1.to_k", "transformer_blocks.0.attn1.to_v"}},
          {"attention.out", {"transformer_blocks.0.attn1.to_out.0"}},
          {"cross.norm", {"transformer_blocks.0.norm2"}},
          {"cross.q", {"transformer_blocks.0.attn2.to_q"}},
          {"cross.kv", {"transformer_blocks.0.attn2.to_k", "transformer_blocks.0.attn2.to_v"}},
          {"cross.out", {"transformer_blocks.0.attn2.to_out.0"}},
          {"mlp.norm", {"transformer_blocks.0.norm3"}},
          {"mlp.gate_up", {"transformer_blocks.0.ff.net.0.proj"}},
          {"mlp.down", {"transformer_blocks.0.ff.net.2"}},
          {"proj_out", {"proj_out"}}};
}

}  // namespace unet

std::vector<nn::ExternalName> unet_diffusers_names(const ModelShape& shape) {
  if (text_encoder_blocks(shape) > 0)
    return names_with_text_encoder(shape, unet_diffusers_names(without_text_encoder(shape)));
  const std::vector<UnetPart> parts = unet_parts(shape.own.as<UnetSizes>());
  FolderNames table{.outside = {{"pictures", {"conv_in"}},
                                {"time.linear_1", {"time_embedding.linear_1"}},
                                {"time.linear_2", {"time_embedding.linear_2"}},
                                {"more.linear_1", {"add_embedding.linear_1"}},
                                {"more.linear_2", {"add_embedding.linear_2"}},
                                {"norm", {"conv_norm_out"}},
                                {"head", {"conv_out"}}},
                    .in_block = unet::layers_of_parts()};
  for (const UnetPart& part : parts) table.each_block.push_back(part.folder);
  std::vector<nn::ExternalName> names = names_in_folder(shape, table);
  for (nn::ExternalName& name : names) {
    const std::optional<int64_t> block = block_of(name.ours, shape.layers);
    if (!block) continue;
    for (nn::ExternalRows& rows : name.parts) unet::name_layer(rows.name, parts.at(*block).layer);
    if (name.ours.find(".mlp.gate_up.") == std::string::npos) continue;
    // The folder has the rows of the gate behind the others.
    const int64_t rows = 4 * parts.at(*block).out;
    const std::string theirs = name.parts.front().name;
    name.parts = {{theirs, rows, rows}, {theirs, 0, rows}};
  }
  return names;
}

ModelShape unet_from_diffusers(const nlohmann::json& config) {
  nlohmann::json known;  // the keys that are written are those that the class has
  FolderKeys writer(known);
  ModelShape example;
  UnetSizes sizes;
  unet::keys(writer, example, sizes);
  check_diffusers_config(config, unet::kClass, known);
  const auto may_be_null = [&](const std::string& key) {  // the folder of SDXL has upcast_attention = null for false
    return key.starts_with('_') || known[key].is_null() || key == unet::kSampleSize || key == unet::kUpcast;
  };
  for (const auto& [key, value] : config.items())
    require(!value.is_null() || may_be_null(key), "model", key, " of ", with_article(unet::kClass),
            " must have a value: got null, with which diffusers makes another model");
  return settled(read_folder(FolderConfig(config, "UNet"), unet::keys), "unet");
}

nlohmann::json unet_to_diffusers(const ModelShape& shape) {
  nlohmann::json j{{"_class_name", unet::kClass}, {"_diffusers_version", "0.42.1"}};
  FolderKeys k(j);
  ModelShape written = shape;
  auto own = shape.own.as<UnetSizes>();
  unet::keys(k, written, own);
  return j;
}

}  // namespace colossal::models
