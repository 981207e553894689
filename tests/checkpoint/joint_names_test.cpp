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

}  // namespace
}  // namespace colossal::checkpoint::joint_names_test
