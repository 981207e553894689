// The autoencoder of clips of Open-Sora 1.2 as it is published, OpenSora-VAE-v1.2.
#include <algorithm>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/families/open_sora_vae.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {

namespace open_sora_vae {

using Kind = OpenSoraVaeBlock::Kind;

constexpr const char* kType = "VideoAutoencoderPipeline";

/// The table of the autoencoder of frames. Open-Sora reads its sizes from another folder, of SDXL's autoencoder.
nlohmann::json frames_table(const OpenSoraVaeSizes& own) {
  const OpenSoraVaeSizes usual;
  nlohmann::json table{{"type", "VideoAutoencoderKL"},
                       {"from_pretrained", "PixArt-alpha/pixart_sigma_sdxlvae_T5_diffusers"},
                       {"subfolder", "vae"},
                       {"micro_batch_size", 4},
                       {"local_files_only", false}};
  if (own.levels != usual.levels) table["block_out_channels"] = own.levels;
  if (own.resnets != usual.resnets) table["layers_per_block"] = own.resnets;
  if (own.channels != usual.channels) table["latent_channels"] = own.channels;
  if (own.groups != usual.groups) table["norm_num_groups"] = own.groups;
  if (own.scaling != usual.scaling) table["scaling_factor"] = own.scaling;
  return table;
}

void read_frames(const FolderConfig& table, OpenSoraVaeSizes& own) {
  table.must_be("type", "VideoAutoencoderKL");
  own.levels = table.value("block_out_channels", own.levels);
  own.resnets = table.value("layers_per_block", own.resnets);
  own.channels = table.value("latent_channels", own.channels);
  own.groups = table.value("norm_num_groups", own.groups);
  own.scaling = table.value("scaling_factor", own.scaling);
}

/// The table of the autoencoder in time: Open-Sora has a class for its sizes, and one for any sizes.
nlohmann::json time_table(const OpenSoraVaeSizes& own) {
  const OpenSoraVaeSizes usual;
  const bool is_usual = own.filters == usual.filters && own.multipliers == usual.multipliers &&
                        own.halves == usual.halves && own.time_resnets == usual.time_resnets &&
                        own.groups == usual.groups && own.channels == usual.channels;
  if (is_usual) return {{"type", "VAE_Temporal_SD"}, {"from_pretrained", nullptr}};
  std::vector<bool> halves(own.halves.begin(), own.halves.end());
  return {{"type", "VAE_Temporal"},
          {"in_out_channels", own.channels},
          {"latent_embed_dim", own.channels},
          {"embed_dim", own.channels},
          {"filters", own.filters},
          {"num_res_blocks", own.time_resnets},
          {"channel_multipliers", own.multipliers},
          {"temporal_downsample", halves},
          {"num_groups", own.groups}};
}

void read_time(const FolderConfig& table, OpenSoraVaeSizes& own) {
  table.must_be_one_of("type", {"VAE_Temporal_SD", "VAE_Temporal"});
  if (table.value("type", "") == "VAE_Temporal") own.halves = {1, 1, 0};  // the default of that class
  for (const char* key : {"in_out_channels", "latent_embed_dim", "embed_dim"}) table.must_be(key, own.channels);
  own.filters = table.value("filters", own.filters);
  own.time_resnets = table.value("num_res_blocks", own.time_resnets);
  own.multipliers = table.value("channel_multipliers", own.multipliers);
  table.must_be("num_groups", own.groups);
  table.must_be("activation_fn", "swish");
  if (!table.has("temporal_downsample")) return;
  const auto halves = table.at<std::vector<bool>>("temporal_downsample");
  own.halves.assign(halves.begin(), halves.end());
}

/// The row of numbers of channels: a list, or one number for all of them.
void channel_numbers(FolderKeys& k, const char* key, std::vector<double>& numbers, double otherwise, int64_t channels) {
  if (k.writes()) return k.written(key, numbers);
  const bool is_list = k.config().has(key) && k.config().at<nlohmann::json>(key).is_array();
  numbers = is_list ? k.config().at<std::vector<double>>(key)
                    : std::vector<double>(static_cast<size_t>(channels), k.config().value(key, otherwise));
}

void keys(FolderKeys& k, ModelShape& s, OpenSoraVaeSizes& own) {
  constexpr const char *kFrames = "vae_2d", *kTime = "vae_temporal";
  if (k.writes()) {
    k.written(kFrames, frames_table(own));
    k.written(kTime, time_table(own));
  } else {
    read_frames(k.config().object(kFrames), own);
    read_time(k.config().object(kTime), own);
  }
  k.required("micro_frame_size", own.chunk);
  channel_numbers(k, "shift", own.shift, 0, own.channels);
  channel_numbers(k, "scale", own.scale, 1, own.channels);
  k.written("from_pretrained", nullptr);
  k.written("freeze_vae_2d", false);
  k.written("cal_loss", false);
  if (!k.reads()) return;
  require(!own.levels.empty() && own.levels.size() <= 16, "model", "block_out_channels must have 1 to 16 levels: got ",
          own.levels.size());
  own.frames = own.chunk;
  own.height = own.width = std::max<int64_t>(own.of_frames().factor(), 256);
  s.tied = false;
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "Open-Sora VAE"), keys); }

nlohmann::json to_json(const ModelShape& s) { return write_folder(kType, kType, s, keys); }

/// Returns the name of a tensor of a block of the autoencoder in time, whose name in the block is `tensor`.
std::string time_tensor(const OpenSoraVaeBlock& block, const std::string& tensor) {
  const std::string layer = tensor.substr(0, tensor.rfind('.')), ending = tensor.substr(layer.size());
  if (block.kind == Kind::Resnet) {
    if (layer.starts_with("norm")) return block.folder + tensor;
    return block.folder + (layer == "conv_shortcut" ? "conv3" : layer) + ".conv" + ending;
  }
  if (layer == "quant")
    return (block.decodes ? "temporal_vae.post_quant_conv.conv" : "temporal_vae.quant_conv.conv") + ending;
  if (layer == "norm") return block.folder + "norm1" + ending;
  switch (block.kind) {
    case Kind::Input:
      return block.folder + "conv_in.conv" + ending;
    case Kind::Moments:
      return block.folder + "conv2.conv" + ending;
    case Kind::Latent:
      return block.folder + "conv1.conv" + ending;
    case Kind::Output:
      return block.folder + "conv_out.conv" + ending;
    default:
      return block.folder + "conv" + ending;
  }
}

std::vector<nn::ExternalName> names(const ModelShape& shape) {
  constexpr const char *kBlocks = "blocks.", *kFrames = "spatial_vae.module.";
  std::vector<nn::ExternalName> found =
      names_in_folder(shape, {.outside = {{"input", {concat(kFrames, "encoder.conv_in")}},
                                          {"norm", {concat(kFrames, "decoder.conv_norm_out")}},
                                          {"head", {concat(kFrames, "decoder.conv_out")}},
                                          {"shift", {"shift"}},
                                          {"scale", {"scale"}}},
                              .blocks = kBlocks,
                              .in_block = autoencoder_kl_in_block()});
  const std::vector<OpenSoraVaeBlock> blocks = open_sora_vae_blocks(shape.own.as<OpenSoraVaeSizes>());
  for (nn::ExternalName& name : found) {
    const std::optional<int64_t> index = models::block_of(name.ours, shape.layers);
    if (!index) continue;
    const OpenSoraVaeBlock& block = blocks.at(static_cast<size_t>(*index));
    for (nn::ExternalRows& part : name.parts) {
      const std::string tensor = part.name.substr(concat(kBlocks, *index, ".").size());
      part.name = block.kind == Kind::Frames ? kFrames + autoencoder_kl_tensor(block.of_frames, tensor)
                                             : time_tensor(block, tensor);
    }
  }
  return found;
}

}  // namespace open_sora_vae

HuggingFace open_sora_vae_folder() {
  std::vector<std::pair<std::string, std::string>> endings = autoencoder_kl_old_endings();
  return {.model_type = open_sora_vae::kType,
          .names = open_sora_vae::names,
          .from_json = open_sora_vae::from_json,
          .to_json = open_sora_vae::to_json,
          .may_lack = {"shift", "scale"},
          .old_endings = std::move(endings),
          .own_training = {"frames", "height", "width"}};
}

}  // namespace colossal::models
