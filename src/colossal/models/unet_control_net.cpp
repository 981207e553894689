#include "colossal/models/unet_control_net.h"

#include <algorithm>
#include <array>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/diffusers_config.h"
#include "colossal/models/families/unet.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/model.h"
#include "colossal/models/registry.h"
#include "colossal/models/unet_control.h"

namespace colossal::models {
namespace {

constexpr const char *kControlClass = "ControlNetModel", *kControlPrefix = "control.", *kControlPart = ".control.",
                     *kChannels = "conditioning_embedding_out_channels";

/// Keys of a UNet's config.json that the class ControlNetModel has, too.
constexpr std::array kSharedKeys{"in_channels",
                                 "flip_sin_to_cos",
                                 "freq_shift",
                                 "down_block_types",
                                 "mid_block_type",
                                 "only_cross_attention",
                                 "block_out_channels",
                                 "layers_per_block",
                                 "downsample_padding",
                                 "mid_block_scale_factor",
                                 "act_fn",
                                 "norm_num_groups",
                                 "norm_eps",
                                 "cross_attention_dim",
                                 "transformer_layers_per_block",
                                 "encoder_hid_dim",
                                 "encoder_hid_dim_type",
                                 "attention_head_dim",
                                 "num_attention_heads",
                                 "use_linear_projection",
                                 "class_embed_type",
                                 "addition_embed_type",
                                 "addition_time_embed_dim",
                                 "num_class_embeds",
                                 "upcast_attention",
                                 "resnet_time_scale_shift",
                                 "projection_class_embeddings_input_dim",
                                 "addition_embed_type_num_heads"};

/// The keys that only a ControlNet has.
void own_keys_of_control(FolderKeys& k, OwnControl& own) {
  k.fixed("conditioning_channels", 3);
  k.fixed("controlnet_conditioning_channel_order", "rgb");
  k.fixed("global_pool_conditions", false);
  k.optional(kChannels, own.channels, {16, 32, 96, 256});
}

/// Returns the classes of levels on the way up, of those on the way down.
nlohmann::json up_types(const nlohmann::json& down) {
  nlohmann::json up = nlohmann::json::array();
  for (const auto& name : down)
    up.insert(up.begin(), name == "CrossAttnDownBlock2D" ? "CrossAttnUpBlock2D" : "UpBlock2D");
  return up;
}

/// Returns the config of the UNet whose first half a ControlNet has.
nlohmann::json unet_of_control(const nlohmann::json& config) {
  nlohmann::json unet{{"_class_name", "UNet2DConditionModel"}};
  for (const char* key : kSharedKeys)
    if (config.contains(key) && (key != std::string("mid_block_type") || !config[key].is_null()))
      unet[key] = config[key];
  if (config.contains("down_block_types") && config["down_block_types"].is_array())
    unet["up_block_types"] = up_types(config["down_block_types"]);
  return unet;
}

/// Returns an entry of each layer's parameters.
void add_layer_names(const std::string& ours, const std::string& theirs, std::vector<nn::ExternalName>& names) {
  for (const char* end : {".weight", ".bias"}) names.push_back({ours + end, {theirs + end}});
}

}  // namespace

ModelShape with_control(ModelShape denoiser, OwnControl control) {
  require(denoiser.architecture != nullptr && denoiser.own.holds<UnetSizes>(), "model",
          "a ControlNet must be for a unet: got ",
          denoiser.architecture ? with_article(denoiser.architecture->name) : "no model");
  require(text_encoder_blocks(denoiser) == 0, "model",
          "a ControlNet must be for a unet that reads states of captions: got one with its text encoder within it");
  require(!control.channels.empty(), "model", kChannels, " must have one number or more: got none");
  for (const int64_t channels : control.channels)
    require(channels > 0, "model", kChannels, " must be positive: got ", channels);
  denoiser.set(std::move(control));
  return denoiser;
}

ModelShape without_control(ModelShape shape) {
  if (has_control(shape)) shape.set(OwnControl{});
  return shape;
}

bool has_control(const ModelShape& shape) { return !shape.part<OwnControl>().channels.empty(); }

bool is_of_control(const std::string& name) {
  return name.starts_with(kControlPrefix) ||
         (name.starts_with("blocks.") && name.find(kControlPart) != std::string::npos);
}

std::optional<std::string> control_origin(const std::string& name) {
  const std::string before(kControlPrefix), inside(kControlPart);
  if (!is_of_control(name)) return std::nullopt;
  if (name.starts_with(before)) {
    if (name.starts_with(before + "condition.")) return std::nullopt;
    return name.substr(before.size());
  }
  const size_t at = name.find(inside);
  const std::string layer = name.substr(at + inside.size());
  if (layer.starts_with("zero")) return std::nullopt;
  return name.substr(0, at) + "." + layer;
}

void mark_control(nn::Parameters& parameters) {
  const std::string& model = parameters.options().model;
  std::vector<std::string> names;
  for (const nn::Parameter& p : parameters.declared())
    if (p.model == model && is_of_control(p.own_name())) names.push_back(p.name);
  for (const std::string& name : names) parameters.at(name).is_added = true;
}

std::vector<nn::ExternalName> control_folder_names(const ModelShape& shape) {
  const std::vector<UnetPart> parts = unet_parts(shape.own.as<UnetSizes>());
  const size_t second_half = unet_second_half(parts);
  std::vector<nn::ExternalName> names;
  for (nn::ExternalName& name : unet_diffusers_names(without_control(shape))) {
    const auto block = block_of(name.ours, shape.layers);
    if (block && *block >= static_cast<int64_t>(second_half)) continue;
    if (!block && (name.ours.starts_with("norm.") || name.ours.starts_with("head."))) continue;
    if (block) {
      const std::string prefix = concat("blocks.", *block);
      name.ours = concat(prefix, ".control", name.ours.substr(prefix.size()));
    } else {
      name.ours = kControlPrefix + name.ours;
    }
    names.push_back(std::move(name));
  }
  const size_t layers = shape.part<OwnControl>().channels.size();
  const std::string ours = "control.condition.", theirs = "controlnet_cond_embedding.";
  for (const char* end : {"conv_in", "conv_out"}) add_layer_names(ours + end, theirs + end, names);
  for (size_t i = 0; i < 2 * (layers - 1); ++i)
    add_layer_names(concat(ours, "blocks.", i), concat(theirs, "blocks.", i), names);
  add_layer_names("blocks.0.control.zero_in", "controlnet_down_blocks.0", names);
  for (size_t i = 0; i < second_half; ++i)
    if (makes_skip(parts[i]))
      add_layer_names(concat("blocks.", i, ".control.zero"),
                      concat("controlnet_down_blocks.", parts[i].writes - kUnetSkips), names);
  add_layer_names(concat("blocks.", second_half - 1, ".control.zero"), "controlnet_mid_block", names);
  return names;
}

OwnControl control_from_diffusers(const nlohmann::json& config, const ModelShape& shape) {
  OwnControl own;
  try {
    nlohmann::json known = control_to_diffusers(with_control(without_control(shape), {.channels = {1}}));
    check_diffusers_config(config, kControlClass, known);
    const FolderConfig from(config, "ControlNet");
    FolderKeys keys(from);
    own_keys_of_control(keys, own);
    const nlohmann::json mine = unet_to_diffusers(unet_from_diffusers(unet_of_control(config))),
                         base = unet_to_diffusers(without_control(shape));
    for (const char* key : kSharedKeys)
      require(mine.value(key, nlohmann::json()) == base.value(key, nlohmann::json()) ||
                  key == std::string("upcast_attention"),
              "model", key, " must be that of the model, ", base.value(key, nlohmann::json()).dump(), ": got ",
              mine.value(key, nlohmann::json()).dump(), "; the ControlNet belongs to another base");
  } catch (const Error& error) {
    throw Error("adapter", error.message());
  } catch (const nlohmann::json::exception& error) {
    throw Error("adapter", concat("the config.json of a ControlNet must have values of its class: ", error.what()));
  }
  return own;
}

nlohmann::json control_to_diffusers(const ModelShape& shape) {
  const nlohmann::json unet = unet_to_diffusers(without_control(shape));
  nlohmann::json j{{"_class_name", kControlClass}, {"_diffusers_version", "0.42.1"}};
  for (const char* key : kSharedKeys)
    if (unet.contains(key)) j[key] = unet[key];
  auto own = shape.part<OwnControl>();
  FolderKeys keys(j);
  own_keys_of_control(keys, own);
  return j;
}

}  // namespace colossal::models
