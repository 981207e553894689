// DeepSeek-V2 and V3: sizes, conversion to config.json and back, names in folders, and refusals.
// tests/interop/deepseek_interop.py checks that they compute what transformers computes.
#include "colossal/models/families/deepseek.h"

#include <gmock/gmock.h>

#include <map>

#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/serial_layers.h"
#include "support/thrown_message.h"

namespace colossal::models::deepseek_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ModelShape preset(const std::string& name) { return built_in().resolve({.name = name}); }

/// Returns the number of parameters and of balance biases of a preset.
std::pair<int64_t, int64_t> count(const std::string& name) {
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  make_model(preset(name), layers);
  int64_t biases = 0;
  for (const nn::Buffer& buffer : parameters.buffers()) biases += buffer.spec.numel();
  return {parameters.numel(), biases};
}

TEST(Deepseek, MatchesPublishedParameterCounts) {
  EXPECT_EQ(count("deepseek-v3"), (std::pair<int64_t, int64_t>{671026404352, 14848}));
  EXPECT_EQ(count("deepseek-v2-lite"), (std::pair<int64_t, int64_t>{15706484224, 0}));
}

TEST(Deepseek, CachesOneLatentOfAToken) {
  const ModelShape v3 = preset("deepseek-v3");
  EXPECT_EQ(v3.layers * v3.part<models::LatentSizes>().cached * 2, 70272) << "bytes in bf16";
}

ModelShape with(const DeepseekSizes& own) {
  ModelShape s = preset("deepseek-tiny");
  s.own = own;
  s.tied = false;
  s.architecture->settle(s);
  return s;
}

/// Shapes in which keys of their folders differ from the defaults: V3, V2, V3 without mixtures, V3 with two multi-token
/// layers after its 4 blocks.
std::vector<ModelShape> odd_shapes() {
  const RotaryKeys yarn{.theta = 700,
                        .type = "yarn",
                        .scaling = {.factor = 4, .original_positions = 128, .mscale = 0.9, .mscale_all_dim = 0.8}};
  const ExpertKeys v3{.count = 6,
                      .used = 3,
                      .ffn = 20,
                      .shared = 2,
                      .dense_first = 2,
                      .score = "sigmoid",
                      .normalize = false,
                      .scale = 1.7,
                      .groups = 3,
                      .groups_used = 2,
                      .balance_loss = 0,
                      .bias = true};
  const ExpertKeys v2{.count = 8, .used = 3, .ffn = 20, .shared = 1, .normalize = false, .groups = 4, .groups_used = 2};
  return {with({.layout = {.rotary = yarn, .activation = "gelu"},
                .q_rank = 12,
                .kv_rank = 10,
                .nope_dim = 6,
                .rope_dim = 4,
                .v_dim = 8,
                .rope_interleave = false,
                .experts = v3}),
          with({.kv_rank = 10, .nope_dim = 6, .rope_dim = 4, .v_dim = 10, .experts = v2}), with({.kv_rank = 9}),
          with({.kv_rank = 9, .experts = v3, .multi_token_layers = 2})};
}

TEST(Deepseek, ConvertsToConfigJsonAndBack) {
  for (const ModelShape& s : odd_shapes()) {
    const json j = s.architecture->hugging_face.to_json(s);
    EXPECT_TRUE(built_in().shape_of(j) == s) << j;
  }
  const ModelShape v2 = odd_shapes()[1];
  const json j = v2.architecture->hugging_face.to_json(v2);
  EXPECT_EQ(j["model_type"], "deepseek_v2");
  EXPECT_EQ(j["topk_method"], "group_limited_greedy");
  EXPECT_TRUE(j["q_lora_rank"].is_null());
}

TEST(Deepseek, NamesEveryTensorOfAFolder) {
  const ModelShape s = odd_shapes()[0];
  std::map<std::string, std::vector<std::string>> parts;
  for (const nn::ExternalName& name : s.architecture->hugging_face.names(s))
    for (const nn::ExternalRows& part : name.parts) parts[name.ours].push_back(part.name);
  using Names = std::vector<std::string>;
  EXPECT_EQ(parts["blocks.0.attention.latent.weight"],
            (Names{"model.layers.0.self_attn.q_a_proj.weight", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"}));
  EXPECT_EQ(parts["blocks.3.mlp.router.bias"], Names{"model.layers.3.mlp.gate.e_score_correction_bias"});
  EXPECT_EQ(parts["blocks.3.mlp.router.weight"], Names{"model.layers.3.mlp.gate.weight"});
  EXPECT_EQ(parts["blocks.3.mlp.experts.gate_up.weight"],
            (Names{"model.layers.3.mlp.experts.{}.gate_proj.weight", "model.layers.3.mlp.experts.{}.up_proj.weight"}));
  EXPECT_EQ(parts["blocks.3.mlp.shared.down.weight"], Names{"model.layers.3.mlp.shared_experts.down_proj.weight"});
  EXPECT_FALSE(parts.contains("blocks.1.mlp.router.bias")) << "a dense block";
  EXPECT_EQ(s.architecture->hugging_face.left_out(s).at(0).name, "model.layers.4.*");
}

TEST(Deepseek, NamesMultiTokenLayersAfterTheBlocks) {
  const ModelShape s = odd_shapes()[3];
  const HuggingFace& folder = s.architecture->hugging_face;
  EXPECT_EQ(folder.to_json(s)["num_nextn_predict_layers"], 2);
  std::map<std::string, std::string> first;
  for (const nn::ExternalName& name : folder.names(s)) first[name.ours] = name.parts.at(0).name;
  EXPECT_EQ(first["head.multi_token.0.eh_proj.weight"], "model.layers.4.eh_proj.weight");
  EXPECT_EQ(first["head.multi_token.1.enorm.weight"], "model.layers.5.enorm.weight");
  EXPECT_EQ(first["head.multi_token.1.hnorm.weight"], "model.layers.5.hnorm.weight");
  EXPECT_EQ(first["head.multi_token.1.norm.weight"], "model.layers.5.shared_head.norm.weight");
  EXPECT_EQ(first["head.multi_token.1.norm_1.weight"], "model.layers.5.input_layernorm.weight");
  EXPECT_EQ(first["head.multi_token.1.mlp.router.bias"], "model.layers.5.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(first["head.multi_token.1.mlp.experts.down.weight"], "model.layers.5.mlp.experts.{}.down_proj.weight");
  EXPECT_EQ(first["head.weight"], "lm_head.weight");
  std::map<std::string, std::string> copies;
  for (const nn::ExternalCopy& copy : copies_in_folder(s)) copies[copy.name] = copy.original;
  EXPECT_EQ(copies,
            (std::map<std::string, std::string>{{"model.layers.4.embed_tokens.weight", "model.embed_tokens.weight"},
                                                {"model.layers.4.shared_head.head.weight", "lm_head.weight"},
                                                {"model.layers.5.embed_tokens.weight", "model.embed_tokens.weight"},
                                                {"model.layers.5.shared_head.head.weight", "lm_head.weight"}}));
  EXPECT_TRUE(folder.left_out(s).empty());
}

TEST(Deepseek, RefusesFoldersByKey) {
  const ModelShape v3 = odd_shapes()[0], v2 = odd_shapes()[1];
  const auto refusal = [](const ModelShape& s, const json& change) {
    json j = s.architecture->hugging_face.to_json(s);
    j.update(change);
    return test::thrown_message([&] { built_in().shape_of(j); });
  };
  EXPECT_THAT(refusal(v3, {{"scoring_func", "softmax"}}), HasSubstr("scoring_func of a DeepSeek must be sigmoid"));
  EXPECT_THAT(refusal(v3, {{"topk_method", "greedy"}}), HasSubstr("topk_method"));
  EXPECT_THAT(refusal(v3, {{"moe_layer_freq", 2}}), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(refusal(v3, {{"attention_bias", true}}), HasSubstr("attention_bias"));
  EXPECT_THAT(refusal(v3, {{"num_key_value_heads", 2}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(refusal(v3, {{"num_nextn_predict_layers", 65}}), HasSubstr("multi_token_layers"));
  EXPECT_THAT(refusal(v2, {{"num_nextn_predict_layers", 1}}), HasSubstr("num_nextn_predict_layers"));
  EXPECT_THAT(refusal(v3, {{"v_head_dim", 11}}), HasSubstr("v_dim must be at most nope_dim + rope_dim: got 11 and 10"));
  EXPECT_THAT(refusal(v3, {{"n_group", 4}}), HasSubstr("groups must divide count"));
  EXPECT_THAT(refusal(v2, {{"norm_topk_prob", true}}), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(refusal(v2, {{"topk_method", "noaux_tc"}}), HasSubstr("topk_method"));
  json scaling = v3.architecture->hugging_face.to_json(v3)["rope_scaling"];
  scaling.erase("mscale");
  EXPECT_THAT(refusal(v3, {{"rope_scaling", scaling}}), HasSubstr("rope_scaling.mscale_all_dim of a DeepSeek must be"));
}

TEST(Deepseek, RefusesExportsThatNoFolderCanSay) {
  const auto refusal = [](const auto& change) {
    const ModelShape s = odd_shapes()[0];
    auto own = s.own.as<DeepseekSizes>();
    change(own);
    const ModelShape changed = with(own);
    return test::thrown_message([&] { changed.architecture->hugging_face.to_json(changed); });
  };
  EXPECT_EQ(refusal([](DeepseekSizes&) {}), "");
  EXPECT_THAT(refusal([](DeepseekSizes& own) { own.experts.every = 2; }), HasSubstr("experts.every must be 1"));
  EXPECT_THAT(refusal([](DeepseekSizes& own) { own.experts.dense = {3}; }), HasSubstr("experts.dense must be empty"));
  EXPECT_THAT(refusal([](DeepseekSizes& own) { own.experts.shared = 0; }), HasSubstr("experts.shared"));
  EXPECT_THAT(refusal([](DeepseekSizes& own) { own.experts.bias = false; }), HasSubstr("experts.bias must be true"));
  EXPECT_THAT(refusal([](DeepseekSizes& own) { own.experts.score = "softmax", own.experts.bias = false; }),
              HasSubstr("rope_interleave must be true"));
  const ModelShape v2 = odd_shapes()[1];
  auto own = v2.own.as<DeepseekSizes>();
  own.multi_token_layers = 1;
  EXPECT_THAT(test::thrown_message([&] { v2.architecture->hugging_face.to_json(with(own)); }),
              HasSubstr("multi_token_layers must be 0 for a folder of deepseek_v2"));
}

TEST(Deepseek, RefusesHeadsThatShareKeys) {
  EXPECT_THAT(test::thrown_message([] { built_in().resolve({.name = "deepseek-tiny", .kv_heads = 2}); }),
              HasSubstr("kv_heads of a deepseek must be heads"));
  EXPECT_EQ(built_in().resolve({.name = "deepseek-tiny", .heads = 6}).head_dim, 24);
}

}  // namespace
}  // namespace colossal::models::deepseek_test
