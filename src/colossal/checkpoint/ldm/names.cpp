#include "colossal/checkpoint/ldm/names.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/pipeline_parts.h"
#include "colossal/checkpoint/ldm/joint_names.h"
#include "colossal/checkpoint/ldm/renaming.h"

namespace colossal::checkpoint {
namespace {

constexpr char kClip[] = "cond_stage_model.transformer.", kOpenClip[] = "cond_stage_model.model.",
               kFirstOfXl[] = "conditioner.embedders.0.transformer.", kSecondOfXl[] = "conditioner.embedders.1.model.",
               kClipL[] = "text_encoders.clip_l.transformer.", kClipG[] = "text_encoders.clip_g.transformer.",
               kT5[] = "text_encoders.t5xxl.transformer.";

std::string resnet_of_unet(const std::string& rest) {
  return renamed(rest, {{"in_layers.0.", "norm1."},
                        {"in_layers.2.", "conv1."},
                        {"emb_layers.1.", "time_emb_proj."},
                        {"out_layers.0.", "norm2."},
                        {"out_layers.3.", "conv2."},
                        {"skip_connection.", "conv_shortcut."}});
}

/// Returns the name of a tensor in block `index` of the way down or up. Each level has `layers` + 1 of them. Module 0
/// of a block is its ResNet, or on the way down its convolution of stride 2; module 1 is its transformer, if it has
/// one; the convolution after upsampling is the last.
std::string unet_block(const char* blocks, int64_t index, int64_t layers, std::string rest) {
  const std::string level = concat(blocks, index / (layers + 1), ".");
  const int64_t layer = index % (layers + 1), module = take_number(rest);
  if (take(rest, "op.")) return concat(level, "downsamplers.0.conv.", rest);
  if (module > 0 && take(rest, "conv.")) return concat(level, "upsamplers.0.conv.", rest);
  if (module == 0) return concat(level, "resnets.", layer, ".", resnet_of_unet(rest));
  return concat(level, "attentions.", layer, ".", rest);
}

std::string unet_name(const std::string& name, int64_t layers) {
  std::string rest = name;
  if (take(rest, "input_blocks.0.0.")) return "conv_in." + rest;
  if (take(rest, "input_blocks.")) {
    const int64_t index = take_number(rest);
    return unet_block("down_blocks.", index - 1, layers, rest);
  }
  if (take(rest, "output_blocks.")) {
    const int64_t index = take_number(rest);
    return unet_block("up_blocks.", index, layers, rest);
  }
  if (take(rest, "middle_block.0.")) return "mid_block.resnets.0." + resnet_of_unet(rest);
  if (take(rest, "middle_block.1.")) return "mid_block.attentions.0." + rest;
  if (take(rest, "middle_block.2.")) return "mid_block.resnets.1." + resnet_of_unet(rest);
  return renamed(name, {{"time_embed.0.", "time_embedding.linear_1."},
                        {"time_embed.2.", "time_embedding.linear_2."},
                        {"label_emb.0.0.", "add_embedding.linear_1."},
                        {"label_emb.0.2.", "add_embedding.linear_2."},
                        {"out.0.", "conv_norm_out."},
                        {"out.2.", "conv_out."}});
}

std::string resnet_of_vae(const std::string& rest) { return renamed(rest, {{"nin_shortcut.", "conv_shortcut."}}); }

/// `half`: "encoder." or "decoder.", of which `rest` is a tensor. The file counts the levels of the decoder from the
/// pixels, diffusers from the latent.
std::string vae_name(const std::string& half, std::string rest, int64_t levels) {
  const bool is_down = take(rest, "down.");
  if (is_down || take(rest, "up.")) {
    const int64_t index = take_number(rest);
    const std::string level =
        concat(half, is_down ? "down_blocks." : "up_blocks.", is_down ? index : levels - 1 - index, ".");
    if (take(rest, "downsample.")) return concat(level, "downsamplers.0.", rest);
    if (take(rest, "upsample.")) return concat(level, "upsamplers.0.", rest);
    if (!take(rest, "block.")) return level + rest;
    const int64_t layer = take_number(rest);
    return concat(level, "resnets.", layer, ".", resnet_of_vae(rest));
  }
  if (take(rest, "mid.block_1.")) return concat(half, "mid_block.resnets.0.", resnet_of_vae(rest));
  if (take(rest, "mid.block_2.")) return concat(half, "mid_block.resnets.1.", resnet_of_vae(rest));
  if (take(rest, "mid.attn_1."))
    return concat(
        half, "mid_block.attentions.0.",
        renamed(
            rest,
            {{"norm.", "group_norm."}, {"q.", "to_q."}, {"k.", "to_k."}, {"v.", "to_v."}, {"proj_out.", "to_out.0."}}));
  return half + renamed(rest, {{"norm_out.", "conv_norm_out."}});
}

std::vector<LdmPlace> vae_places(std::string rest, int64_t levels) {
  if (rest.starts_with("loss.")) return {};
  for (const char* half : {"encoder.", "decoder."})
    if (take(rest, half)) return {{kVaePart, vae_name(half, rest, levels)}};
  return {{kVaePart, rest}};
}

/// `text`: the part. `blocks`: those of OpenCLIP, of which the last one is left out; 0 = the encoder has all of it.
std::vector<LdmPlace> open_clip_places(std::string rest, const std::string& text, int64_t blocks) {
  if (rest == "text_projection" && blocks == 0) return {{text, "text_projection.weight", {.transposed = true}}};
  if (rest == "text_projection" || rest == "logit_scale" || rest == "attn_mask") return {};
  if (rest == "positional_embedding") return {{text, "text_model.embeddings.position_embedding.weight"}};
  if (!take(rest, "transformer.resblocks."))
    return {{text, renamed(rest, {{"token_embedding.", "text_model.embeddings.token_embedding."},
                                  {"ln_final.", "text_model.final_layer_norm."}})}};
  const int64_t block = take_number(rest);
  if (blocks > 0 && block + 1 >= blocks) return {};  // the states before it are what a UNet was trained with
  const std::string layer = concat("text_model.encoder.layers.", block, ".");
  if (take(rest, "attn.in_proj_")) {
    std::vector<LdmPlace> places;
    for (const char* projection : {"q_proj.", "k_proj.", "v_proj."})
      places.push_back(
          {text, concat(layer, "self_attn.", projection, rest), {static_cast<int64_t>(places.size()), 1, 3}});
    return places;
  }
  return {{text, layer + renamed(rest, {{"ln_1.", "layer_norm1."},
                                        {"ln_2.", "layer_norm2."},
                                        {"attn.", "self_attn."},
                                        {"mlp.c_fc.", "mlp.fc1."},
                                        {"mlp.c_proj.", "mlp.fc2."}})}};
}

/// Places in a file with the transformer of Stable Diffusion 3 or FLUX, whose encoders have the names of transformers.
std::vector<LdmPlace> joint_text_places(std::string rest, const LdmSizes& sizes) {
  if (take(rest, kClipL)) {
    if (rest == "text_projection.weight") return {};
    return {{kTextEncoderPart, rest}};
  }
  if (take(rest, kClipG)) return {{kSecondTextEncoderPart, rest}};
  if (take(rest, kT5)) return {{sizes.joint_blocks > 0 ? kThirdTextEncoderPart : kSecondTextEncoderPart, rest}};
  return {};
}

}  // namespace

LdmSizes ldm_sizes(const std::vector<std::string>& names) {
  LdmSizes sizes;
  const int64_t blocks = count_after(names, concat(kLdmDenoiser, "input_blocks."));
  if (blocks > 0) {
    const auto halves = std::count_if(names.begin(), names.end(), [](const std::string& name) {
      return name.starts_with(kLdmDenoiser) && name.ends_with(".0.op.weight");
    });
    sizes.unet_levels = halves + 1;
    sizes.unet_layers = blocks / sizes.unet_levels - 1;
  }
  const std::string level = "encoder.down.";
  sizes.vae_levels = count_after(names, sizes.vae + level);
  const std::string of_flux = "vae.";
  if (const int64_t levels = count_after(names, of_flux + level); levels > 0) {
    sizes.vae = of_flux;
    sizes.vae_levels = levels;
  }
  if (const int64_t levels = count_after(names, level); levels > 0) {
    sizes.vae = "";
    sizes.vae_levels = levels;
  }
  sizes.joint_blocks = count_after(names, concat(kLdmDenoiser, "joint_blocks."));
  for (const char* begin : {kLdmDenoiser, ""})
    if (const int64_t doubles = count_after(names, concat(begin, "double_blocks.")); doubles > 0) {
      sizes.double_blocks = doubles;
      sizes.denoiser = begin;
      sizes.reads_given = std::find(names.begin(), names.end(), concat(begin, "cond_in.weight")) != names.end();
    }
  sizes.text_blocks = count_after(names, concat(kOpenClip, "transformer.resblocks."));
  return sizes;
}

std::vector<LdmPlace> ldm_places(const std::string& name, const LdmSizes& sizes) {
  std::string rest = name;
  if (take(rest, sizes.denoiser)) {
    if (sizes.joint_blocks > 0) return sd3_places(rest, sizes.joint_blocks);
    if (sizes.reads_given) return {{kTransformerPart, rest}};
    if (sizes.double_blocks > 0) return flux_places(rest);
    return {{kUnetPart, unet_name(rest, sizes.unet_layers)}};
  }
  if (take(rest, kClip) || take(rest, kFirstOfXl)) return {{kTextEncoderPart, rest}};
  if (take(rest, kOpenClip)) return open_clip_places(rest, kTextEncoderPart, sizes.text_blocks);
  if (take(rest, kSecondOfXl)) return open_clip_places(rest, kSecondTextEncoderPart, 0);
  if (rest.starts_with("text_encoders.")) return joint_text_places(rest, sizes);
  if (take(rest, sizes.vae)) return vae_places(rest, sizes.vae_levels);
  return {};
}

}  // namespace colossal::checkpoint
