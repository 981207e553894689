#include "colossal/checkpoint/ldm/file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/checkpoint/ldm/names.h"
#include "colossal/checkpoint/ldm/weights.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

constexpr char kWordsOfT5[] = "shared.weight";

/// The shapes of a part.
class LdmShapes {
 public:
  LdmShapes(const LdmPart& part) : weights_(part.file, part.part), file_(part.file) {}

  bool has(const std::string& name) const { return weights_.entries().contains(name); }
  /// Returns a dimension of a tensor. Errors ("ldm"): it is missing.
  int64_t size(const std::string& name, size_t dimension) const {
    const auto found = weights_.entries().find(name);
    require(found != weights_.entries().end() && found->second->shape.size() > dimension, "ldm", file_,
            " must have the tensor that diffusers calls ", name, ": got none of that shape");
    return found->second->shape[dimension];
  }
  int64_t dimensions(const std::string& name) const {
    return has(name) ? weights_.entries().at(name)->shape.size() : 0;
  }
  /// Returns for how many numbers from 0 the file has `begin`, the number, and `end`.
  int64_t count(const std::string& begin, const std::string& end) const {
    int64_t number = 0;
    while (has(concat(begin, number, end))) ++number;
    return number;
  }
  /// Returns the first dimension of each of them.
  std::vector<int64_t> sizes(const std::string& begin, const std::string& end) const {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < count(begin, end); ++i) all.push_back(size(concat(begin, i, end), 0));
    return all;
  }

 private:
  LdmWeights weights_;
  std::string file_;
};

/// Returns true for a safetensors file with a tensor whose name begins so.
bool has_names(const std::string& path, const std::string& begin) {
  std::error_code none;
  if (!path.ends_with(".safetensors") || !std::filesystem::is_regular_file(path, none)) return false;
  const SafetensorsReader file(path);
  const auto first = file.entries().lower_bound(begin);
  return first != file.entries().end() && first->first.starts_with(begin);
}

/// Returns true for a file with the transformer of Stable Diffusion 3.
bool has_joint_blocks(const std::string& path) { return has_names(path, concat(kLdmDenoiser, "joint_blocks.")); }

/// Returns true for a file with the transformer of Stable Diffusion 3, of FLUX or of Open-Sora 2.
bool has_transformer(const std::string& path) {
  return has_joint_blocks(path) || has_names(path, concat(kLdmDenoiser, "double_blocks.")) ||
         has_names(path, "double_blocks.");
}

bool has_unet(const std::string& path) { return has_names(path, kLdmDenoiser) && !has_transformer(path); }

/// Returns true for a file of Stable Diffusion 2: the projections around its transformers are linear.
bool is_second(const std::string& file) {
  if (!has_unet(file)) return false;  // a VAE alone
  const LdmShapes unet({file, kUnetPart});
  return unet.dimensions("mid_block.attentions.0.proj_in.weight") == 2;
}

/// Returns true for a file of SDXL: the UNet is told a pooled text.
bool is_xl(const std::string& file) { return has_names(file, concat(kLdmDenoiser, "label_emb.")); }

bool predicts_v(const std::string& file) {
  if (!is_second(file) || is_xl(file)) return false;
  const SafetensorsReader reader(file);
  constexpr char kSteps[] = "global_step";
  return !reader.contains(kSteps) || reader.tensor(kSteps).item().toLong() != 875000;
}

json unet_config(const LdmPart& part) {
  const LdmShapes unet(part);
  const bool second = is_second(part.file);
  const std::vector<int64_t> features = unet.sizes("down_blocks.", ".resnets.0.conv1.weight");
  std::vector<int64_t> heads;
  std::vector<std::string> down, up;
  for (size_t i = 0; i < features.size(); ++i) {
    const bool attends = unet.has(concat("down_blocks.", i, ".attentions.0.norm.weight"));
    heads.push_back(second ? std::max<int64_t>(1, features[i] / 64) : 8);
    down.emplace_back(attends ? "CrossAttnDownBlock2D" : "DownBlock2D");
    up.emplace_back(attends ? "CrossAttnUpBlock2D" : "UpBlock2D");
  }
  std::reverse(up.begin(), up.end());
  const bool xl = is_xl(part.file);
  json config{{"_class_name", "UNet2DConditionModel"},
              {"_diffusers_version", "0.42.1"},
              {"sample_size", xl                      ? 128
                              : predicts_v(part.file) ? 96
                                                      : 64},
              {"in_channels", unet.size("conv_in.weight", 1)},
              {"out_channels", unet.size("conv_out.weight", 0)},
              {"block_out_channels", features},
              {"down_block_types", down},
              {"up_block_types", up},
              {"layers_per_block", unet.count("down_blocks.0.resnets.", ".conv1.weight")},
              {"cross_attention_dim", unet.size("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1)},
              {"attention_head_dim", second ? json(heads) : json(8)},
              {"use_linear_projection", second},
              {"upcast_attention", second && !xl}};
  if (!xl) return config;
  constexpr int64_t kSizeFeatures = 256;  // sinusoids of each size of a picture
  std::vector<int64_t> layers;
  for (size_t i = 0; i < features.size(); ++i)
    layers.push_back(std::max<int64_t>(
        1, unet.count(concat("down_blocks.", i, ".attentions.0.transformer_blocks."), ".norm1.weight")));
  config["transformer_layers_per_block"] = layers;
  config["addition_embed_type"] = "text_time";
  config["addition_time_embed_dim"] = kSizeFeatures;
  config["projection_class_embeddings_input_dim"] = unet.size("add_embedding.linear_1.weight", 1);
  return config;
}

/// The keys of both transformers that follow from the same tensors.
json transformer_config(const LdmShapes& shapes, const char* class_name) {
  return {{"_class_name", class_name},
          {"_diffusers_version", "0.42.1"},
          {"num_layers", shapes.count("transformer_blocks.", ".norm1.linear.weight")},
          {"joint_attention_dim", shapes.size("context_embedder.weight", 1)},
          {"pooled_projection_dim", shapes.size("time_text_embed.text_embedder.linear_1.weight", 1)}};
}

json sd3_config(const LdmShapes& shapes) {
  json config = transformer_config(shapes, "SD3Transformer2DModel");
  const char* patches = "pos_embed.proj.weight";
  const int64_t hidden = shapes.size(patches, 0), patch = shapes.size(patches, 2), channels = shapes.size(patches, 1);
  const bool has_norms = shapes.has("transformer_blocks.0.attn.norm_q.weight");
  constexpr int64_t kHeadDim = 64;
  config["patch_size"] = patch;
  config["in_channels"] = config["out_channels"] = channels;
  config["attention_head_dim"] = kHeadDim;
  config["num_attention_heads"] = std::max<int64_t>(1, hidden / kHeadDim);
  config["caption_projection_dim"] = hidden;
  const int64_t side = std::llround(std::sqrt(shapes.size("pos_embed.pos_embed", 1)));
  config["pos_embed_max_size"] = side;
  config["sample_size"] = std::min<int64_t>(128, side * patch);
  config["qk_norm"] = has_norms ? json("rms_norm") : json();
  if (shapes.has("transformer_blocks.0.attn2.qkv.weight")) config["dual_attention_layers"] = {0};  // which are refused
  return config;
}

json flux_config(const LdmShapes& shapes) {
  json config = transformer_config(shapes, "FluxTransformer2DModel");
  const int64_t head_dim = std::max<int64_t>(1, shapes.size("transformer_blocks.0.attn.norm_q.weight", 0)),
                of_frame = head_dim / 8;
  config["patch_size"] = 1;
  config["in_channels"] = shapes.size("x_embedder.weight", 1);
  config["out_channels"] = shapes.size("proj_out.weight", 0);
  config["num_single_layers"] = shapes.count("single_transformer_blocks.", ".norm.linear.weight");
  config["attention_head_dim"] = head_dim;
  config["num_attention_heads"] = shapes.size("x_embedder.weight", 0) / head_dim;
  config["guidance_embeds"] = shapes.has("time_text_embed.guidance_embedder.linear_1.weight");
  config["axes_dims_rope"] = {of_frame, (head_dim - of_frame) / 2, (head_dim - of_frame) / 2};
  return config;
}

/// Returns the keys of Open-Sora's MMDiTConfig.
json open_sora_config(const LdmShapes& shapes) {
  const char* patches = "img_in.weight";
  const std::string block = "double_blocks.0.";
  const int64_t hidden = shapes.size(patches, 0), in = shapes.size(patches, 1),
                head_dim = std::max<int64_t>(1, shapes.size(block + "img_attn.norm.query_norm.scale", 0)),
                of_frame = head_dim / 8, of_mask = std::max<int64_t>(1, shapes.size("cond_in.weight", 1) - in);
  const auto ffn = static_cast<double>(shapes.size(block + "img_mlp.0.weight", 0));
  return {{"model_type", "MMDiT"},
          {"in_channels", in},
          {"patch_size", std::llround(std::sqrt(of_mask))},
          {"vec_in_dim", shapes.size("vector_in.in_layer.weight", 1)},
          {"context_in_dim", shapes.size("txt_in.weight", 1)},
          {"hidden_size", hidden},
          {"mlp_ratio", ffn / static_cast<double>(std::max<int64_t>(1, hidden))},
          {"num_heads", hidden / head_dim},
          {"depth", shapes.count("double_blocks.", ".img_mod.lin.weight")},
          {"depth_single_blocks", shapes.count("single_blocks.", ".modulation.lin.weight")},
          {"axes_dim", {of_frame, (head_dim - of_frame) / 2, (head_dim - of_frame) / 2}},
          {"guidance_embed", shapes.has("guidance_in.in_layer.weight")},
          {"fused_qkv", shapes.has(block + "img_attn.qkv.weight")}};
}

json joint_config(const LdmPart& part) {
  const LdmShapes shapes(part);
  if (shapes.has("cond_in.weight")) return open_sora_config(shapes);
  return shapes.has("pos_embed.pos_embed") ? sd3_config(shapes) : flux_config(shapes);
}

/// Returns the keys with which latents are scaled: those of Stable Diffusion 1 and 2, or of SDXL. For latents of 16
/// channels they are those of Stable Diffusion 3 if the file has its transformer, else those of FLUX.
json latent_scale(const std::string& file, int64_t channels) {
  if (channels != 16) return {{"scaling_factor", is_xl(file) ? .13025 : .18215}};
  if (has_joint_blocks(file)) return {{"scaling_factor", 1.5305}, {"shift_factor", .0609}};
  return {{"scaling_factor", .3611}, {"shift_factor", .1159}};
}

json vae_config(const LdmPart& part) {
  const LdmShapes vae(part);
  const std::vector<int64_t> features = vae.sizes("encoder.down_blocks.", ".resnets.0.conv1.weight");
  const int64_t channels = vae.size("decoder.conv_in.weight", 1);
  json config{{"_class_name", "AutoencoderKL"},
              {"_diffusers_version", "0.42.1"},
              {"sample_size", channels == 16 || is_xl(part.file) ? 1024
                              : predicts_v(part.file)            ? 768
                                                                 : 512},
              {"in_channels", vae.size("encoder.conv_in.weight", 1)},
              {"out_channels", vae.size("decoder.conv_out.weight", 0)},
              {"latent_channels", channels},
              {"block_out_channels", features},
              {"down_block_types", std::vector<std::string>(features.size(), "DownEncoderBlock2D")},
              {"up_block_types", std::vector<std::string>(features.size(), "UpDecoderBlock2D")},
              {"layers_per_block", vae.count("encoder.down_blocks.0.resnets.", ".conv1.weight")},
              {"use_quant_conv", vae.has("quant_conv.weight")},
              {"use_post_quant_conv", vae.has("post_quant_conv.weight")}};
  config.update(latent_scale(part.file, channels));
  return config;
}

/// Returns the config of an encoder of T5.
json t5_config(const LdmShapes& text) {
  const std::string block = "encoder.block.0.layer.", attention = block + "0.SelfAttention.",
                    mlp = block + "1.DenseReluDense.";
  const bool is_gated = text.has(mlp + "wi_0.weight");
  const char* buckets = "relative_attention_bias.weight";
  const int64_t heads = std::max<int64_t>(1, text.size(attention + buckets, 1));
  return {{"model_type", "t5"},
          {"architectures", {"T5EncoderModel"}},
          {"vocab_size", text.size(kWordsOfT5, 0)},
          {"d_model", text.size(kWordsOfT5, 1)},
          {"d_kv", text.size(attention + "q.weight", 0) / heads},
          {"d_ff", text.size(mlp + (is_gated ? "wi_0.weight" : "wi.weight"), 0)},
          {"num_heads", heads},
          {"num_layers", text.count("encoder.block.", ".layer.0.SelfAttention.q.weight")},
          {"relative_attention_num_buckets", text.size(attention + buckets, 0)},
          {"feed_forward_proj", is_gated ? "gated-gelu" : "relu"}};
}

json text_config(const LdmPart& part) {
  const LdmShapes text(part);
  if (text.has(kWordsOfT5)) return t5_config(text);
  const std::string table = "text_model.embeddings.token_embedding.weight", layers = "text_model.encoder.layers.";
  const int64_t hidden = text.size(table, 1);
  const bool is_first = part.part == kTextEncoderPart,
             is_open = is_first ? !is_xl(part.file) && is_second(part.file) : true,
             is_projected = !is_first || text.has("text_projection.weight");
  json config{{"model_type", "clip_text_model"},
              {"architectures", {is_projected ? "CLIPTextModelWithProjection" : "CLIPTextModel"}},
              {"vocab_size", text.size(table, 0)},
              {"hidden_size", hidden},
              {"num_hidden_layers", text.count(layers, ".mlp.fc1.weight")},
              {"num_attention_heads", std::max<int64_t>(1, hidden / 64)},
              {"intermediate_size", text.size(layers + "0.mlp.fc1.weight", 0)},
              {"max_position_embeddings", text.size("text_model.embeddings.position_embedding.weight", 0)},
              {"hidden_act", is_open ? "gelu" : "quick_gelu"},
              {"eos_token_id", 2}};  // as in the published folders
  if (is_projected) config["projection_dim"] = text.size("text_projection.weight", 0);
  return config;
}

/// Returns the scheduler of Stable Diffusion 3 or FLUX.
json flow_config(const std::string& file) {
  json config{{"_class_name", "FlowMatchEulerDiscreteScheduler"},
              {"_diffusers_version", "0.42.1"},
              {"num_train_timesteps", 1000},
              {"shift", 3.0}};
  if (has_joint_blocks(file)) return config;
  const bool is_dev = LdmShapes({file, kTransformerPart}).has("time_text_embed.guidance_embedder.linear_1.weight");
  config["use_dynamic_shifting"] = is_dev;
  if (!is_dev) config["shift"] = 1.0;
  return config;
}

json scheduler_config(const std::string& file) {
  if (has_transformer(file)) return flow_config(file);
  if (is_xl(file))
    return {{"_class_name", "EulerDiscreteScheduler"},
            {"_diffusers_version", "0.42.1"},
            {"beta_start", 8.5e-4},
            {"beta_end", .012},
            {"beta_schedule", "scaled_linear"},
            {"num_train_timesteps", 1000},
            {"prediction_type", "epsilon"},
            {"timestep_spacing", "leading"},
            {"steps_offset", 1}};
  json config{{"_class_name", is_second(file) ? "DDIMScheduler" : "PNDMScheduler"},
              {"_diffusers_version", "0.42.1"},
              {"beta_start", 8.5e-4},
              {"beta_end", .012},
              {"beta_schedule", "scaled_linear"},
              {"num_train_timesteps", 1000},
              {"prediction_type", predicts_v(file) ? "v_prediction" : "epsilon"},
              {"clip_sample", false},
              {"set_alpha_to_one", false},
              {"skip_prk_steps", true},
              {"steps_offset", 1}};
  return config;
}

}  // namespace

bool is_ldm_file(const std::string& path) {
  if (!has_transformer(path)) return has_names(path, kLdmDenoiser);
  return has_ldm_part({path, kVaePart}) || has_ldm_part({path, kTextEncoderPart}) ||
         has_ldm_part({path, kSecondTextEncoderPart});
}

std::optional<LdmPart> ldm_part(const std::string& path) {
  if (has_transformer(path)) return LdmPart{path, kTransformerPart};
  if (has_names(path, kLdmDenoiser)) return LdmPart{path, kUnetPart};
  if (has_names(path, "first_stage_model.") || has_names(path, "encoder.down.")) return LdmPart{path, kVaePart};
  for (const char* part : {kUnetPart, kTransformerPart, kVaePart, kTextEncoderPart, kSecondTextEncoderPart,
                           kThirdTextEncoderPart, kSchedulerPart}) {
    const std::string end = concat("/", part);
    if (!path.ends_with(end)) continue;
    const std::string file = path.substr(0, path.size() - end.size());
    if (has_names(file, kLdmDenoiser) || has_transformer(file)) return LdmPart{file, part};
  }
  return {};
}

bool has_ldm_part(const LdmPart& part) {
  const SafetensorsReader file(part.file);
  std::vector<std::string> names;
  for (const auto& [name, entry] : file.entries()) names.push_back(name);
  const LdmSizes sizes = ldm_sizes(names);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const std::vector<LdmPlace> places = ldm_places(name, sizes);
    return !places.empty() && places.front().part == part.part;
  });
}

json ldm_config(const LdmPart& part) {
  if (part.part == kUnetPart) return unet_config(part);
  if (part.part == kTransformerPart) return joint_config(part);
  if (part.part == kVaePart) return vae_config(part);
  if (part.part != kSchedulerPart) return text_config(part);
  return scheduler_config(part.file);
}

}  // namespace colossal::checkpoint
