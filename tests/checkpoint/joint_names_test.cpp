// The files of the makers of Stable Diffusion 3 and FLUX under the names of diffusers. The pairs of names are what the
// conversion of diffusers 0.42.1 does.
#include "colossal/checkpoint/ldm/joint_names.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/ldm/weights.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::joint_names_test {
namespace {

using testing::ElementsAre;

constexpr LdmRows kSwapped{.swapped = true};

LdmPlace there(std::string name, LdmRows rows = {}) { return {"transformer", std::move(name), rows}; }

TEST(JointNames, FollowTheConversionOfStableDiffusion3) {
  const std::pair<const char*, LdmPlace> pairs[] = {
      {"pos_embed", there("pos_embed.pos_embed")},
      {"x_embedder.proj.bias", there("pos_embed.proj.bias")},
      {"t_embedder.mlp.2.weight", there("time_text_embed.timestep_embedder.linear_2.weight")},
      {"y_embedder.mlp.0.bias", there("time_text_embed.text_embedder.linear_1.bias")},
      {"context_embedder.weight", there("context_embedder.weight")},
      {"joint_blocks.2.x_block.attn.proj.weight", there("transformer_blocks.2.attn.to_out.0.weight")},
      {"joint_blocks.2.x_block.attn.ln_k.weight", there("transformer_blocks.2.attn.norm_k.weight")},
      {"joint_blocks.23.x_block.adaLN_modulation.1.bias", there("transformer_blocks.23.norm1.linear.bias")},
      {"joint_blocks.2.x_block.mlp.fc1.weight", there("transformer_blocks.2.ff.net.0.proj.weight")},
      {"joint_blocks.2.context_block.attn.ln_q.weight", there("transformer_blocks.2.attn.norm_added_q.weight")},
      {"joint_blocks.2.context_block.attn.proj.bias", there("transformer_blocks.2.attn.to_add_out.bias")},
      {"joint_blocks.2.context_block.mlp.fc2.bias", there("transformer_blocks.2.ff_context.net.2.bias")},
      {"joint_blocks.22.context_block.adaLN_modulation.1.bias",
       there("transformer_blocks.22.norm1_context.linear.bias")},
      {"joint_blocks.23.context_block.adaLN_modulation.1.bias",
       there("transformer_blocks.23.norm1_context.linear.bias", kSwapped)},
      {"final_layer.adaLN_modulation.1.weight", there("norm_out.linear.weight", kSwapped)},
      {"final_layer.linear.bias", there("proj_out.bias")},
      {"joint_blocks.2.x_block.attn2.proj.bias", there("transformer_blocks.2.attn2.proj.bias")}};
  for (const auto& [name, place] : pairs) EXPECT_THAT(sd3_places(name, 24), ElementsAre(place)) << name;
  EXPECT_THAT(sd3_places("joint_blocks.0.context_block.attn.qkv.weight", 24),
              ElementsAre(there("transformer_blocks.0.attn.add_q_proj.weight", {0, 1, 3}),
                          there("transformer_blocks.0.attn.add_k_proj.weight", {1, 1, 3}),
                          there("transformer_blocks.0.attn.add_v_proj.weight", {2, 1, 3})));
}

TEST(JointNames, FollowTheConversionOfFlux) {
  const std::pair<const char*, LdmPlace> pairs[] = {
      {"img_in.weight", there("x_embedder.weight")},
      {"txt_in.bias", there("context_embedder.bias")},
      {"time_in.in_layer.weight", there("time_text_embed.timestep_embedder.linear_1.weight")},
      {"vector_in.out_layer.bias", there("time_text_embed.text_embedder.linear_2.bias")},
      {"guidance_in.out_layer.weight", there("time_text_embed.guidance_embedder.linear_2.weight")},
      {"double_blocks.7.img_mod.lin.bias", there("transformer_blocks.7.norm1.linear.bias")},
      {"double_blocks.7.txt_mod.lin.bias", there("transformer_blocks.7.norm1_context.linear.bias")},
      {"double_blocks.7.img_attn.norm.key_norm.scale", there("transformer_blocks.7.attn.norm_k.weight")},
      {"double_blocks.7.txt_attn.norm.query_norm.scale", there("transformer_blocks.7.attn.norm_added_q.weight")},
      {"double_blocks.7.img_attn.proj.weight", there("transformer_blocks.7.attn.to_out.0.weight")},
      {"double_blocks.7.txt_attn.proj.weight", there("transformer_blocks.7.attn.to_add_out.weight")},
      {"double_blocks.7.img_mlp.0.bias", there("transformer_blocks.7.ff.net.0.proj.bias")},
      {"double_blocks.7.txt_mlp.2.bias", there("transformer_blocks.7.ff_context.net.2.bias")},
      {"single_blocks.37.linear2.bias", there("single_transformer_blocks.37.proj_out.bias")},
      {"single_blocks.37.modulation.lin.bias", there("single_transformer_blocks.37.norm.linear.bias")},
      {"single_blocks.37.norm.query_norm.scale", there("single_transformer_blocks.37.attn.norm_q.weight")},
      {"final_layer.adaLN_modulation.1.bias", there("norm_out.linear.bias", kSwapped)},
      {"final_layer.linear.weight", there("proj_out.weight")}};
  for (const auto& [name, place] : pairs) EXPECT_THAT(flux_places(name), ElementsAre(place)) << name;
  EXPECT_THAT(flux_places("single_blocks.0.linear1.bias"),
              ElementsAre(there("single_transformer_blocks.0.attn.to_q.bias", {0, 1, 7}),
                          there("single_transformer_blocks.0.attn.to_k.bias", {1, 1, 7}),
                          there("single_transformer_blocks.0.attn.to_v.bias", {2, 1, 7}),
                          there("single_transformer_blocks.0.proj_mlp.bias", {3, 4, 7})));
}

/// Returns the tensors of FLUX that show its sizes, for a hidden size of 32.
std::map<std::string, at::Tensor> flux_tensors() {
  return {{"img_in.weight", at::ones({32, 16})},
          {"txt_in.weight", at::ones({32, 24})},
          {"vector_in.in_layer.weight", at::ones({32, 20})},
          {"double_blocks.0.img_mod.lin.weight", at::ones({192, 32})},
          {"double_blocks.0.img_attn.norm.query_norm.scale", at::ones({16})},
          {"single_blocks.0.modulation.lin.weight", at::ones({96, 32})},
          {"single_blocks.1.modulation.lin.weight", at::ones({96, 32})},
          {"single_blocks.1.linear1.bias", at::arange(7 * 32, at::kFloat)},
          {"final_layer.linear.weight", at::ones({16, 32})},
          {"final_layer.adaLN_modulation.1.bias", at::arange(64, at::kFloat)}};
}

TEST(JointFile, GivesTheRowsOfFusedMatricesAndSwapsHalves) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "flux.safetensors";
  write_safetensors(path, flux_tensors());
  EXPECT_FALSE(is_ldm_file(path)) << "it has no UNet";
  EXPECT_EQ(ldm_part(path)->part, "transformer");
  const LdmWeights weights(path, "transformer");
  const std::string block = "single_transformer_blocks.1.";
  EXPECT_TRUE(at::equal(weights.tensor(block + "attn.to_v.bias"), at::arange(64, 96, at::kFloat)));
  EXPECT_TRUE(at::equal(weights.tensor(block + "proj_mlp.bias"), at::arange(96, 224, at::kFloat)));
  EXPECT_EQ(weights.entries().at(block + "proj_mlp.bias")->shape, std::vector<int64_t>{128});
  EXPECT_TRUE(at::equal(weights.tensor("norm_out.linear.bias"),
                        at::cat({at::arange(32, 64, at::kFloat), at::arange(32, at::kFloat)})));
}

TEST(JointFile, HasTheConfigThatItsTensorsShow) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "flux.safetensors";
  std::map<std::string, at::Tensor> bare = flux_tensors(), prefixed;
  for (const auto& [name, value] : bare) prefixed["model.diffusion_model." + name] = value;
  for (const auto& tensors : {bare, prefixed}) {
    write_safetensors(path, tensors);
    const nlohmann::json config = read_config(path);
    EXPECT_EQ(config.at("_class_name"), "FluxTransformer2DModel");
    EXPECT_EQ(config.at("num_layers"), 1);
    EXPECT_EQ(config.at("num_single_layers"), 2);
    EXPECT_EQ(config.at("num_attention_heads"), 2);
    EXPECT_EQ(config.at("axes_dims_rope"), nlohmann::json({2, 7, 7}));
    EXPECT_EQ(config.at("in_channels"), 16);
    EXPECT_EQ(config.at("joint_attention_dim"), 24);
    EXPECT_EQ(config.at("pooled_projection_dim"), 20);
    EXPECT_EQ(config.at("guidance_embeds"), false);
  }
  const std::string sd3 = folder / "sd3.safetensors", begin = "model.diffusion_model.", vae = "first_stage_model.";
  const std::map<std::string, at::Tensor> autoencoder{
      {vae + "encoder.conv_in.weight", at::ones({8, 3, 3, 3})},
      {vae + "encoder.down.0.block.0.conv1.weight", at::ones({8, 8, 3, 3})},
      {vae + "decoder.conv_in.weight", at::ones({8, 16, 3, 3})},
      {vae + "decoder.conv_out.weight", at::ones({3, 8, 3, 3})}};
  std::map<std::string, at::Tensor> tensors{
      {begin + "pos_embed", at::ones({1, 36, 128})},
      {begin + "x_embedder.proj.weight", at::ones({128, 16, 2, 2})},
      {begin + "context_embedder.weight", at::ones({128, 24})},
      {begin + "y_embedder.mlp.0.weight", at::ones({128, 20})},
      {begin + "joint_blocks.0.x_block.adaLN_modulation.1.weight", at::ones({768, 128})}};
  tensors.insert(autoencoder.begin(), autoencoder.end());
  write_safetensors(sd3, tensors);
  const nlohmann::json config = read_config(sd3), latents = read_config(sd3 + "/vae");
  EXPECT_EQ(config, read_config(sd3 + "/transformer"));
  EXPECT_EQ(config.at("_class_name"), "SD3Transformer2DModel");
  EXPECT_EQ(config.at("num_attention_heads"), 2);
  EXPECT_EQ(config.at("pos_embed_max_size"), 6);
  EXPECT_EQ(config.at("qk_norm"), nlohmann::json());
  EXPECT_EQ(latents.at("scaling_factor"), 1.5305);
  EXPECT_EQ(latents.at("shift_factor"), .0609);
  EXPECT_FALSE(config.contains("dual_attention_layers"));
  tensors[begin + "joint_blocks.0.x_block.attn2.qkv.weight"] = at::ones({384, 128});
  write_safetensors(sd3, tensors);
  EXPECT_TRUE(read_config(sd3).contains("dual_attention_layers")) << "Stable Diffusion 3.5 medium, which is refused";
  prefixed.insert(autoencoder.begin(), autoencoder.end());
  write_safetensors(path, prefixed);
  EXPECT_EQ(read_config(path + "/vae").at("scaling_factor"), .3611) << "that of FLUX";
}

/// Returns the tensors of the text encoders that a file may have: CLIP-L of 4 features, CLIP-G of 8, T5 of 6.
std::map<std::string, at::Tensor> text_tensors(bool has_second) {
  std::map<std::string, at::Tensor> all;
  for (const bool is_second : {false, true}) {
    if (is_second && !has_second) continue;
    const std::string begin = concat("text_encoders.", is_second ? "clip_g" : "clip_l", ".");
    const int64_t features = is_second ? 8 : 4;
    all[begin + "logit_scale"] = at::ones({1});
    all[begin + "transformer.text_projection.weight"] = at::full({features, features}, 2.);
    all[begin + "transformer.text_model.embeddings.token_embedding.weight"] = at::ones({100, features});
    all[begin + "transformer.text_model.embeddings.position_embedding.weight"] = at::ones({77, features}, at::kDouble);
    all[begin + "transformer.text_model.encoder.layers.0.mlp.fc1.weight"] = at::ones({4 * features, features});
  }
  const std::string begin = "text_encoders.t5xxl.transformer.", block = begin + "encoder.block.0.layer.";
  all[begin + "shared.weight"] = at::ones({50, 6});
  all[block + "0.SelfAttention.q.weight"] = at::ones({8, 6});
  all[block + "0.SelfAttention.relative_attention_bias.weight"] = at::ones({32, 2});
  all[block + "1.DenseReluDense.wi_0.weight"] = at::ones({10, 6});
  return all;
}

// sd3_medium_incl_clips.safetensors, and FLUX with all its parts in one file.
TEST(JointFile, HasThePartsBesideTheTransformer) {
  const test::TemporaryFolder folder;
  const std::string sd3 = folder / "sd3.safetensors", flux = folder / "flux.safetensors",
                    begin = "model.diffusion_model.";
  std::map<std::string, at::Tensor> tensors = text_tensors(true);
  tensors[begin + "joint_blocks.0.x_block.mlp.fc1.bias"] = at::ones({4});
  write_safetensors(sd3, tensors);
  EXPECT_TRUE(is_ldm_file(sd3));
  EXPECT_EQ(ldm_part(sd3)->part, "transformer");
  const nlohmann::json first = read_config(sd3 + "/text_encoder"), second = read_config(sd3 + "/text_encoder_2"),
                       t5 = read_config(sd3 + "/text_encoder_3");
  EXPECT_EQ(first.at("projection_dim"), 4);
  EXPECT_EQ(first.at("hidden_act"), "quick_gelu");
  EXPECT_EQ(second.at("projection_dim"), 8);
  EXPECT_EQ(second.at("hidden_act"), "gelu");
  EXPECT_EQ(t5.at("architectures"), nlohmann::json({"T5EncoderModel"}));
  EXPECT_EQ(t5.at("d_kv"), 4);
  EXPECT_EQ(t5.at("num_layers"), 1);
  EXPECT_EQ(t5.at("feed_forward_proj"), "gated-gelu");
  const LdmWeights own(sd3, "text_encoder"), other(sd3, "text_encoder_2");
  EXPECT_TRUE(at::equal(own.tensor("text_projection.weight"), at::eye(4, at::kDouble))) << "as diffusers converts it";
  EXPECT_EQ(own.entries().at("text_projection.weight")->end, 4 * 4 * 8);
  EXPECT_TRUE(own.can_wait("text_projection.weight"));
  EXPECT_EQ(other.tensor("text_projection.weight")[0][0].item<double>(), 2);
  EXPECT_EQ(ldm_config({sd3, "scheduler"}).at("shift"), 3.0);
  tensors = text_tensors(false);
  for (const auto& [name, value] : flux_tensors()) tensors[begin + name] = value;
  tensors["vae.encoder.down.0.block.0.conv1.weight"] = at::ones({8, 8, 3, 3});
  write_safetensors(flux, tensors);
  EXPECT_TRUE(is_ldm_file(flux));
  EXPECT_EQ(read_config(flux + "/text_encoder").at("architectures"), nlohmann::json({"CLIPTextModel"}));
  EXPECT_FALSE(LdmWeights(flux, "text_encoder").entries().contains("text_projection.weight"));
  EXPECT_EQ(read_config(flux + "/text_encoder_2").at("d_model"), 6);
  EXPECT_TRUE(LdmWeights(flux, "vae").entries().contains("encoder.down_blocks.0.resnets.0.conv1.weight"));
  EXPECT_EQ(ldm_config({flux, "scheduler"}).at("shift"), 1.0) << "schnell";
  tensors[begin + "guidance_in.in_layer.weight"] = at::ones({32, 8});
  write_safetensors(flux, tensors);
  EXPECT_EQ(ldm_config({flux, "scheduler"}).at("use_dynamic_shifting"), true) << "dev";
}

}  // namespace
}  // namespace colossal::checkpoint::joint_names_test
