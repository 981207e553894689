// The one file of latent diffusion's makers under the names of diffusers. The pairs of names are what the conversion of
// diffusers 0.42.1 does with files of Stable Diffusion 1.5 and 2.1.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/ldm/names.h"
#include "colossal/checkpoint/ldm/weights.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::ldm_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const LdmSizes kStableDiffusion{.unet_levels = 4, .unet_layers = 2, .vae_levels = 4};
const LdmSizes kStableDiffusion2{.unet_levels = 4, .unet_layers = 2, .vae_levels = 4, .text_blocks = 24};

TEST(Ldm, HasThePlacesOfTheConversionOfDiffusers) {
  const std::pair<const char*, LdmPlace> pairs[] = {
      {"model.diffusion_model.time_embed.2.bias", {"unet", "time_embedding.linear_2.bias"}},
      {"model.diffusion_model.input_blocks.0.0.weight", {"unet", "conv_in.weight"}},
      {"model.diffusion_model.input_blocks.3.0.op.weight", {"unet", "down_blocks.0.downsamplers.0.conv.weight"}},
      {"model.diffusion_model.input_blocks.4.0.skip_connection.bias",
       {"unet", "down_blocks.1.resnets.0.conv_shortcut.bias"}},
      {"model.diffusion_model.input_blocks.8.1.transformer_blocks.0.attn2.to_out.0.weight",
       {"unet", "down_blocks.2.attentions.1.transformer_blocks.0.attn2.to_out.0.weight"}},
      {"model.diffusion_model.input_blocks.11.0.emb_layers.1.weight",
       {"unet", "down_blocks.3.resnets.1.time_emb_proj.weight"}},
      {"model.diffusion_model.middle_block.1.proj_in.weight", {"unet", "mid_block.attentions.0.proj_in.weight"}},
      {"model.diffusion_model.middle_block.2.out_layers.3.weight", {"unet", "mid_block.resnets.1.conv2.weight"}},
      {"model.diffusion_model.output_blocks.2.1.conv.weight", {"unet", "up_blocks.0.upsamplers.0.conv.weight"}},
      {"model.diffusion_model.output_blocks.5.2.conv.bias", {"unet", "up_blocks.1.upsamplers.0.conv.bias"}},
      {"model.diffusion_model.output_blocks.9.1.norm.weight", {"unet", "up_blocks.3.attentions.0.norm.weight"}},
      {"model.diffusion_model.output_blocks.11.0.in_layers.0.weight", {"unet", "up_blocks.3.resnets.2.norm1.weight"}},
      {"model.diffusion_model.out.0.weight", {"unet", "conv_norm_out.weight"}},
      {"first_stage_model.encoder.down.2.downsample.conv.bias",
       {"vae", "encoder.down_blocks.2.downsamplers.0.conv.bias"}},
      {"first_stage_model.decoder.up.3.block.2.norm1.bias", {"vae", "decoder.up_blocks.0.resnets.2.norm1.bias"}},
      {"first_stage_model.decoder.up.0.block.0.nin_shortcut.weight",
       {"vae", "decoder.up_blocks.3.resnets.0.conv_shortcut.weight"}},
      {"first_stage_model.decoder.up.1.upsample.conv.weight", {"vae", "decoder.up_blocks.2.upsamplers.0.conv.weight"}},
      {"first_stage_model.encoder.mid.block_2.conv1.weight", {"vae", "encoder.mid_block.resnets.1.conv1.weight"}},
      {"first_stage_model.encoder.mid.attn_1.proj_out.weight",
       {"vae", "encoder.mid_block.attentions.0.to_out.0.weight"}},
      {"first_stage_model.encoder.mid.attn_1.norm.bias", {"vae", "encoder.mid_block.attentions.0.group_norm.bias"}},
      {"first_stage_model.post_quant_conv.weight", {"vae", "post_quant_conv.weight"}},
      {"cond_stage_model.transformer.text_model.final_layer_norm.bias",
       {"text_encoder", "text_model.final_layer_norm.bias"}},
      {"cond_stage_model.model.positional_embedding",
       {"text_encoder", "text_model.embeddings.position_embedding.weight"}},
      {"cond_stage_model.model.transformer.resblocks.22.mlp.c_fc.bias",
       {"text_encoder", "text_model.encoder.layers.22.mlp.fc1.bias"}},
      {"cond_stage_model.model.transformer.resblocks.0.attn.out_proj.weight",
       {"text_encoder", "text_model.encoder.layers.0.self_attn.out_proj.weight"}}};
  for (const auto& [name, place] : pairs) EXPECT_THAT(ldm_places(name, kStableDiffusion2), ElementsAre(place)) << name;
}

TEST(Ldm, HasThePlacesOfSdxl) {
  const LdmSizes sizes{.unet_levels = 3, .unet_layers = 2, .vae_levels = 4};
  const std::string second = "conditioner.embedders.1.model.", layer = "text_model.encoder.layers.31.";
  const std::pair<std::string, LdmPlace> pairs[] = {
      {"model.diffusion_model.label_emb.0.0.weight", {"unet", "add_embedding.linear_1.weight"}},
      {"model.diffusion_model.label_emb.0.2.bias", {"unet", "add_embedding.linear_2.bias"}},
      {"model.diffusion_model.input_blocks.7.1.transformer_blocks.9.norm1.weight",
       {"unet", "down_blocks.2.attentions.0.transformer_blocks.9.norm1.weight"}},
      {"conditioner.embedders.0.transformer.text_model.final_layer_norm.bias",
       {"text_encoder", "text_model.final_layer_norm.bias"}},
      {second + "text_projection", {"text_encoder_2", "text_projection.weight", {.transposed = true}}},
      {second + "transformer.resblocks.31.ln_2.bias", {"text_encoder_2", layer + "layer_norm2.bias"}},
      {second + "ln_final.weight", {"text_encoder_2", "text_model.final_layer_norm.weight"}}};
  for (const auto& [name, place] : pairs) EXPECT_THAT(ldm_places(name, sizes), ElementsAre(place)) << name;
  EXPECT_EQ(ldm_places(second + "transformer.resblocks.0.attn.in_proj_weight", sizes).size(), 3u);
  EXPECT_THAT(ldm_places(second + "logit_scale", sizes), ElementsAre());
}

/// Writes a file of a UNet of two levels with a pooled text, of OpenCLIP's projection and of CLIP's table.
std::string write_xl(const test::TemporaryFolder& folder) {
  std::map<std::string, at::Tensor> tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& sizes) {
    tensors[name] = at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
  };
  const std::string unet = "model.diffusion_model.", second = "conditioner.embedders.1.model.",
                    first = "conditioner.embedders.0.transformer.text_model.";
  add(unet + "input_blocks.0.0.weight", {64, 4, 3, 3});
  for (const int64_t block : {1, 3}) {
    const std::string resnet = concat(unet, "input_blocks.", block, ".0.");
    add(resnet + "in_layers.2.weight", {block == 1 ? 64 : 128, 64, 3, 3});
  }
  add(unet + "input_blocks.2.0.op.weight", {64, 64, 3, 3});
  for (const int64_t layer : {0, 1})
    add(concat(unet, "input_blocks.3.1.transformer_blocks.", layer, ".norm1.weight"), {128});
  add(unet + "input_blocks.3.1.norm.weight", {128});
  add(unet + "middle_block.1.proj_in.weight", {128, 128});
  add(unet + "middle_block.1.transformer_blocks.0.attn2.to_k.weight", {128, 40});
  add(unet + "out.2.weight", {4, 64, 3, 3});
  add(unet + "label_emb.0.0.weight", {256, 1546});
  add(first + "embeddings.token_embedding.weight", {99, 64});
  add(first + "embeddings.position_embedding.weight", {77, 64});
  add(first + "encoder.layers.0.mlp.fc1.weight", {128, 64});
  add(second + "text_projection", {128, 10});
  add(second + "token_embedding.weight", {99, 128});
  add(second + "positional_embedding", {77, 128});
  add(second + "transformer.resblocks.0.mlp.c_fc.weight", {256, 128});
  write_safetensors(folder / "xl.safetensors", tensors);
  return folder / "xl.safetensors";
}

TEST(Ldm, HasTheConfigsOfSdxl) {
  const test::TemporaryFolder folder;
  const std::string file = write_xl(folder);
  const nlohmann::json unet = ldm_config({file, "unet"}), first = ldm_config({file, "text_encoder"}),
                       second = ldm_config({file, "text_encoder_2"});
  EXPECT_EQ(unet.at("transformer_layers_per_block"), nlohmann::json({1, 2}));
  EXPECT_EQ(unet.at("attention_head_dim"), nlohmann::json({1, 2}));
  EXPECT_EQ(unet.at("addition_embed_type"), "text_time");
  EXPECT_EQ(unet.at("projection_class_embeddings_input_dim"), 1546);
  EXPECT_EQ(unet.at("upcast_attention"), false);
  EXPECT_EQ(first.at("hidden_act"), "quick_gelu");
  EXPECT_EQ(first.at("architectures").at(0), "CLIPTextModel");
  EXPECT_EQ(second.at("hidden_act"), "gelu");
  EXPECT_EQ(second.at("architectures").at(0), "CLIPTextModelWithProjection");
  EXPECT_EQ(second.at("projection_dim"), 10);
  EXPECT_EQ(ldm_config({file, "scheduler"}).at("_class_name"), "EulerDiscreteScheduler");
  const at::Tensor projection = LdmWeights(file, "text_encoder_2").tensor("text_projection.weight");
  EXPECT_TRUE(projection.equal(at::arange(1280, at::kFloat).view({128, 10}).t()));
}

TEST(Ldm, HasThreePlacesForQueriesKeysAndValuesInOne) {
  const std::string layer = "text_model.encoder.layers.3.self_attn.";
  EXPECT_THAT(ldm_places("cond_stage_model.model.transformer.resblocks.3.attn.in_proj_weight", kStableDiffusion2),
              ElementsAre(LdmPlace{"text_encoder", layer + "q_proj.weight", {0, 1, 3}},
                          LdmPlace{"text_encoder", layer + "k_proj.weight", {1, 1, 3}},
                          LdmPlace{"text_encoder", layer + "v_proj.weight", {2, 1, 3}}));
}

TEST(Ldm, HasNoPlaceForWhatNoPartUses) {
  for (const char* name :
       {"model_ema.diffusion_modelinput_blocks00weight", "alphas_cumprod", "first_stage_model.loss.logvar",
        "cond_stage_model.model.text_projection", "cond_stage_model.model.transformer.resblocks.23.ln_1.weight"})
    EXPECT_THAT(ldm_places(name, kStableDiffusion2), ElementsAre()) << name;
}

TEST(Ldm, ShowsItsSizesByItsNames) {
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i)
    names.push_back("model.diffusion_model.input_blocks." + std::to_string(i) +
                    (i > 0 && i % 3 == 0 ? ".0.op.weight" : ".0.weight"));
  for (int i = 0; i < 4; ++i) names.push_back("first_stage_model.encoder.down." + std::to_string(i) + ".block.0.x");
  EXPECT_EQ(ldm_sizes(names), kStableDiffusion);
  names.push_back("cond_stage_model.model.transformer.resblocks.23.ln_1.weight");
  EXPECT_EQ(ldm_sizes(names), kStableDiffusion2);
}

TEST(Ldm, GivesEachPartItsTensorsInTheShapesOfDiffusers) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "model.safetensors", block = "cond_stage_model.model.transformer.resblocks.";
  const at::Tensor fused = at::arange(24, at::kFloat).view({12, 2}),
                   square = at::arange(4, at::kFloat).view({2, 2, 1, 1});
  write_safetensors(path, {{"model.diffusion_model.input_blocks.0.0.weight", at::ones({2, 1, 3, 3})},
                           {"first_stage_model.encoder.down.0.block.0.conv1.weight", square},
                           {"first_stage_model.encoder.mid.attn_1.q.weight", square},
                           {block + "0.attn.in_proj_weight", fused},
                           {block + "1.ln_1.weight", at::ones({4})},
                           {"alphas_cumprod", at::ones({1000})}});
  EXPECT_TRUE(is_ldm_file(path));
  EXPECT_FALSE(is_ldm_file(folder.path()));
  const LdmWeights unet(path, "unet"), vae(path, "vae"), text(path, "text_encoder");
  EXPECT_EQ(unet.entries().size(), 1u);
  EXPECT_EQ(vae.entries().size(), 2u);
  EXPECT_EQ(vae.tensor("encoder.mid_block.attentions.0.to_q.weight").sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(vae.tensor("encoder.down_blocks.0.resnets.0.conv1.weight").dim(), 4);
  EXPECT_EQ(text.entries().size(), 3u);
  const std::string name = "text_model.encoder.layers.0.self_attn.k_proj.weight";
  EXPECT_TRUE(at::equal(text.tensor(name), fused.narrow(0, 4, 4)));
  EXPECT_EQ(text.entries().at(name)->shape, (std::vector<int64_t>{4, 2}));
  write_safetensors(path, {{"model.diffusion_model.out.0.bias", at::ones({1})}});
  EXPECT_THAT(test::thrown_message([&] { LdmWeights(path, "vae"); }), HasSubstr("must have the tensors of the vae"));
}

/// Returns the tensors of a file that show the sizes of its parts: two levels of 32 and 64, one layer, text of 16.
std::map<std::string, at::Tensor> sized_tensors(bool second) {
  const std::string unet = "model.diffusion_model.", vae = "first_stage_model.",
                    text = second ? "cond_stage_model.model." : "cond_stage_model.transformer.text_model.";
  std::map<std::string, at::Tensor> file{
      {unet + "input_blocks.0.0.weight", at::ones({32, 4, 3, 3})},
      {unet + "input_blocks.1.0.in_layers.2.weight", at::ones({32, 32, 3, 3})},
      {unet + "input_blocks.1.1.norm.weight", at::ones({32})},
      {unet + "input_blocks.2.0.op.weight", at::ones({32, 32, 3, 3})},
      {unet + "input_blocks.3.0.in_layers.2.weight", at::ones({64, 32, 3, 3})},
      {unet + "middle_block.1.proj_in.weight", second ? at::ones({64, 64}) : at::ones({64, 64, 1, 1})},
      {unet + "middle_block.1.transformer_blocks.0.attn2.to_k.weight", at::ones({64, 16})},
      {unet + "out.2.weight", at::ones({4, 32, 3, 3})},
      {vae + "encoder.conv_in.weight", at::ones({8, 3, 3, 3})},
      {vae + "encoder.down.0.block.0.conv1.weight", at::ones({8, 8, 3, 3})},
      {vae + "encoder.down.0.block.1.conv1.weight", at::ones({8, 8, 3, 3})},
      {vae + "decoder.conv_in.weight", at::ones({8, 4, 3, 3})},
      {vae + "decoder.conv_out.weight", at::ones({3, 8, 3, 3})},
      {vae + "quant_conv.weight", at::ones({8, 8, 1, 1})}};
  if (second)
    file.merge(
        std::map<std::string, at::Tensor>{{text + "token_embedding.weight", at::ones({100, 16})},
                                          {text + "positional_embedding", at::ones({77, 16})},
                                          {text + "transformer.resblocks.0.mlp.c_fc.weight", at::ones({64, 16})},
                                          {text + "transformer.resblocks.1.mlp.c_fc.weight", at::ones({64, 16})}});
  else
    file.merge(std::map<std::string, at::Tensor>{{text + "embeddings.token_embedding.weight", at::ones({100, 16})},
                                                 {text + "embeddings.position_embedding.weight", at::ones({77, 16})},
                                                 {text + "encoder.layers.0.mlp.fc1.weight", at::ones({64, 16})}});
  return file;
}

TEST(Ldm, HasTheConfigsThatItsTensorsShow) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  for (const bool second : {false, true}) {
    write_safetensors(path, sized_tensors(second));
    const nlohmann::json unet = read_config(path + "/unet"), vae = read_config(path + "/vae"),
                         text = read_config(path + "/text_encoder"), scheduler = ldm_config({path, "scheduler"});
    EXPECT_EQ(read_config(path), unet);
    EXPECT_EQ(unet.at("block_out_channels"), nlohmann::json({32, 64}));
    EXPECT_EQ(unet.at("up_block_types"), nlohmann::json({"UpBlock2D", "CrossAttnUpBlock2D"}));
    EXPECT_EQ(unet.at("layers_per_block"), 1);
    EXPECT_EQ(unet.at("cross_attention_dim"), 16);
    EXPECT_EQ(unet.at("attention_head_dim"), second ? nlohmann::json({1, 1}) : nlohmann::json(8));
    EXPECT_EQ(unet.at("use_linear_projection"), second);
    EXPECT_EQ(vae.at("layers_per_block"), 2);
    EXPECT_EQ(vae.at("latent_channels"), 4);
    EXPECT_EQ(vae.at("use_quant_conv"), true);
    EXPECT_EQ(vae.at("use_post_quant_conv"), false);
    EXPECT_EQ(text.at("num_hidden_layers"), 1) << "the last block of OpenCLIP is not used";
    EXPECT_EQ(text.at("hidden_act"), second ? "gelu" : "quick_gelu");
    EXPECT_EQ(scheduler.at("prediction_type"), second ? "v_prediction" : "epsilon");
    EXPECT_EQ(open_weights(path + "/vae")->entries().size(), 6u);
  }
  std::map<std::string, at::Tensor> base = sized_tensors(true);
  base["global_step"] = at::full({}, 875000, at::kLong);
  write_safetensors(path, base);
  EXPECT_EQ(ldm_config({path, "scheduler"}).at("prediction_type"), "epsilon");
}

TEST(Ldm, FindsAVaeThatAFileHasAlone) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "vae.safetensors", prefix = "first_stage_model.";
  std::map<std::string, at::Tensor> prefixed, bare;
  for (const auto& [name, value] : sized_tensors(false)) {
    if (!name.starts_with(prefix)) continue;
    prefixed[name] = value;
    bare[name.substr(prefix.size())] = value;
  }
  write_safetensors(folder / "model.safetensors", sized_tensors(false));
  const nlohmann::json wanted = read_config(folder / "model.safetensors/vae");
  for (const auto& file : {prefixed, bare}) {
    write_safetensors(path, file);
    EXPECT_FALSE(is_ldm_file(path)) << "nothing in it draws";
    EXPECT_EQ(ldm_part(path)->part, "vae");
    EXPECT_EQ(read_config(path), wanted);
    EXPECT_TRUE(open_weights(path)->entries().contains("encoder.down_blocks.0.resnets.1.conv1.weight"));
  }
  write_safetensors(path, {{"encoder.down_blocks.0.resnets.0.conv1.bias", at::ones({1})}});
  EXPECT_FALSE(ldm_part(path)) << "a file of diffusers";
}

TEST(Ldm, HasPathsOfItsParts) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  write_safetensors(path, {{"model.diffusion_model.out.0.bias", at::ones({1})}});
  EXPECT_EQ(ldm_part(path)->part, "unet");
  EXPECT_EQ(ldm_part(path + "/vae")->file, path);
  EXPECT_FALSE(ldm_part(path + "/decoder"));
  EXPECT_FALSE(ldm_part(folder.path()));
  EXPECT_TRUE(has_ldm_part({path, "unet"}));
  EXPECT_FALSE(has_ldm_part({path, "vae"}));
  write_safetensors(path, {{"wte.weight", at::ones({1})}});
  EXPECT_FALSE(ldm_part(path)) << "a file of transformers";
}

}  // namespace
}  // namespace colossal::checkpoint::ldm_test
