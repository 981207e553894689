// Mixtures of experts in Hugging Face folders: config.json of Mixtral and Qwen3-MoE, names, and what no folder can say.
// tests/interop/mixture_interop.py checks that they compute what transformers computes.
#include "colossal/models/expert_folder.h"

#include <gmock/gmock.h>

#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/families/qwen3.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/registry.h"
#include "support/thrown_message.h"

namespace colossal::models::expert_folder_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

json mixtral() {
  return {{"model_type", "mixtral"},
          {"vocab_size", 31},
          {"hidden_size", 24},
          {"intermediate_size", 20},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 3},
          {"max_position_embeddings", 64},
          {"num_local_experts", 5},
          {"num_experts_per_tok", 3},
          {"router_aux_loss_coef", 0.02},
          {"output_router_logits", true}};
}

json qwen() {
  json config = mixtral();
  for (const char* key : {"num_local_experts", "num_experts_per_tok"}) config.erase(key);
  return with(config, {{"model_type", "qwen3_moe"},
                       {"num_experts", 6},
                       {"num_experts_per_tok", 3},
                       {"moe_intermediate_size", 10},
                       {"num_hidden_layers", 6}});
}

ExpertKeys experts_of(const ModelShape& shape) {
  return shape.architecture->name == "llama" ? shape.own.as<LlamaSizes>().experts : shape.own.as<Qwen3Sizes>().experts;
}

ModelShape read(const json& config) { return built_in().shape_of(config); }

json written(const ModelShape& shape) { return shape.architecture->hugging_face.to_json(shape); }

std::string refusal(const json& config) {
  return test::thrown_message([&] { read(config); });
}

/// Returns the message that refuses to write a model, which must be the same for its names and its config.json.
std::string refusal_to_write(const char* preset, const std::vector<std::string>& keys) {
  std::vector<std::string> all{"experts.count=4", "experts.used=2"};
  all.insert(all.end(), keys.begin(), keys.end());
  const ModelShape shape = built_in().resolve({.name = preset, .own = own_keys(all)});
  const std::string message = test::thrown_message([&] { written(shape); });
  EXPECT_EQ(test::thrown_message([&] { shape.architecture->hugging_face.names(shape); }), message);
  return message;
}

TEST(ExpertFolder, ReadsMixtral) {
  const ModelShape shape = read(mixtral());
  EXPECT_EQ(shape.architecture->name, "llama");
  EXPECT_EQ(shape.ffn, 20);
  EXPECT_EQ(experts_of(shape), (ExpertKeys{.count = 5, .used = 3})) << "router_aux_loss_coef must not be read";
  EXPECT_EQ(shape.own.as<LlamaSizes>().window, 0);
  EXPECT_EQ(read(with(mixtral(), {{"sliding_window", 7}})).own.as<LlamaSizes>().window, 7);
  EXPECT_EQ(read(with(mixtral(), {{"sliding_window", nullptr}})), shape);
}

// The values of the config classes of transformers.
TEST(ExpertFolder, UsesDefaultsOfConfigClasses) {
  json config = mixtral();
  for (const char* key : {"num_local_experts", "num_experts_per_tok", "num_key_value_heads"}) config.erase(key);
  config.update({{"num_attention_heads", 8}, {"hidden_size", 32}});
  const ModelShape shape = read(config);
  EXPECT_EQ(experts_of(shape), (ExpertKeys{.count = 8, .used = 2}));
  EXPECT_EQ(shape.kv_heads, 8);
  EXPECT_EQ(shape.norm_epsilon, 1e-5);
  EXPECT_EQ(shape.own.as<LlamaSizes>().layout.rotary.theta, 1e6);
  config = qwen();
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "num_key_value_heads"})
    config.erase(key);
  config.update({{"num_attention_heads", 8}, {"hidden_size", 32}});
  const ModelShape other = read(config);
  EXPECT_EQ(experts_of(other), (ExpertKeys{.count = 128, .used = 8, .ffn = 768, .normalize = false}));
  EXPECT_EQ(other.kv_heads, 4);
  EXPECT_EQ(other.head_dim, 4);  // hidden / heads, not 128 as in a Qwen3
  EXPECT_EQ(other.norm_epsilon, 1e-6);
  EXPECT_EQ(other.own.as<Qwen3Sizes>().layout.rotary.theta, 1e4);
}

TEST(ExpertFolder, ReadsDenseLayersOfQwenMoe) {
  const auto mixtures = [](const json& changes) {
    const ModelShape shape = read(with(qwen(), changes));
    std::vector<int64_t> layers;
    for (int64_t layer = 0; layer < shape.layers; ++layer)
      if (experts_of(shape).is_mixture(layer)) layers.push_back(layer);
    EXPECT_EQ(read(written(shape)), shape) << changes;
    return layers;
  };
  EXPECT_THAT(mixtures(json::object()), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(mixtures({{"decoder_sparse_step", 2}}), ElementsAre(1, 3, 5));
  EXPECT_THAT(mixtures({{"mlp_only_layers", {4, 0}}}), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(mixtures({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3, 3}}}), ElementsAre(1, 5));
  EXPECT_THAT(mixtures({{"mlp_only_layers", {0, 6, -1}}}), ElementsAre(1, 2, 3, 4, 5)) << "others have no effect";
  EXPECT_THAT(mixtures({{"num_experts", 0}}), IsEmpty());
  EXPECT_THAT(mixtures({{"decoder_sparse_step", 7}}), IsEmpty());
  EXPECT_EQ(written(read(with(qwen(), {{"num_experts", 0}})))["model_type"], "qwen3");
}

TEST(ExpertFolder, ReadsBothNamesOfTheCount) {
  json config = mixtral();
  config.erase("num_local_experts");
  EXPECT_EQ(read(with(config, {{"num_experts", 5}})), read(mixtral()));
  config = qwen();
  config.erase("num_experts");  // transformers 5 writes the other name
  EXPECT_EQ(read(with(config, {{"num_local_experts", 6}})), read(qwen()));
  EXPECT_EQ(read(with(qwen(), {{"num_local_experts", 6}})), read(qwen()));
  EXPECT_THAT(refusal(with(qwen(), {{"num_local_experts", 7}})),
              HasSubstr("num_experts and num_local_experts of a Qwen3-MoE must be equal: got 6 and 7"));
}

TEST(ExpertFolder, RefusesUnsupportedValuesByKey) {
  EXPECT_THAT(refusal(with(mixtral(), {{"num_local_experts", 0}})),
              HasSubstr("num_local_experts of a Mixtral must be above 0: got 0"));
  EXPECT_THAT(refusal(with(qwen(), {{"decoder_sparse_step", 0}})),
              HasSubstr("decoder_sparse_step of a Qwen3-MoE must be above 0: got 0"));
}

TEST(ExpertFolder, RoundTripsThroughConfigJson) {
  for (const json& config :
       {mixtral(), with(mixtral(), {{"sliding_window", 9}, {"tie_word_embeddings", true}}), qwen(),
        with(qwen(), {{"norm_topk_prob", true}, {"attention_bias", true}, {"head_dim", 8}}),
        with(qwen(), {{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 2}})}) {
    const ModelShape shape = read(config);
    const json again = written(shape);
    EXPECT_EQ(again["model_type"], config["model_type"]);
    EXPECT_EQ(read(again), shape) << again;
    EXPECT_FALSE(again.contains("router_aux_loss_coef"));
  }
  EXPECT_EQ(written(read(mixtral()))["architectures"], json::array({"MixtralForCausalLM"}));
  EXPECT_EQ(written(read(qwen()))["architectures"], json::array({"Qwen3MoeForCausalLM"}));
}

// Features inside an expert are intermediate_size of a Mixtral, but not of a Qwen3-MoE.
TEST(ExpertFolder, WritesFeaturesOfExperts) {
  const ConfigDocument own = own_keys({"experts.count=4", "experts.ffn=40"});
  const json llama = written(built_in().resolve({.name = "llama-tiny", .own = own}));
  EXPECT_EQ(llama["intermediate_size"], 40);
  EXPECT_EQ(read(llama).ffn, 40);
  const ModelShape shape = built_in().resolve({.name = "qwen3-tiny", .own = own});
  EXPECT_EQ(written(shape)["intermediate_size"], shape.ffn);
  EXPECT_EQ(written(shape)["moe_intermediate_size"], 40);
  const ModelShape equal = built_in().resolve({.name = "qwen3-tiny", .own = own_keys({"experts.count=4"})});
  EXPECT_EQ(written(equal)["moe_intermediate_size"], equal.ffn);
}

TEST(ExpertFolder, WritesDenseFirstAsListedLayers) {
  const ConfigDocument own = own_keys({"experts.count=4", "experts.dense_first=3", "experts.every=2"});
  const ModelShape shape = built_in().resolve({.name = "qwen3-tiny", .layers = 6, .own = own});
  EXPECT_EQ(written(shape)["decoder_sparse_step"], 2);
  EXPECT_EQ(written(shape)["mlp_only_layers"], json::array({1}));
}

TEST(ExpertFolder, RefusesToWriteWhatNoFolderCanSay) {
  EXPECT_THAT(refusal_to_write("gpt2-tiny", {}), HasSubstr("count must be 0 to be written as a gpt2"));
  for (const auto& [preset, folder] : {std::pair{"llama-tiny", "mixtral"}, {"qwen3-tiny", "qwen3_moe"}}) {
    const std::string ending = std::string(" to be written as a ") + folder + ", which has no ";
    EXPECT_THAT(refusal_to_write(preset, {"experts.shared=2"}),
                HasSubstr("[experts] shared must be 0" + ending + "shared experts: got 2; use the run folder"));
    EXPECT_THAT(refusal_to_write(preset, {"experts.score=sigmoid"}), HasSubstr("score must be softmax" + ending));
    EXPECT_THAT(refusal_to_write(preset, {"experts.scale=2.5"}), HasSubstr("scale must be 1" + ending));
    EXPECT_THAT(refusal_to_write(preset, {"experts.groups=2", "experts.groups_used=1"}),
                HasSubstr("groups_used must be 2" + ending));
    EXPECT_THAT(refusal_to_write(preset, {"experts.bias=true"}), HasSubstr("bias must be false" + ending));
    EXPECT_EQ(refusal_to_write(preset, {"experts.capacity=1.25", "experts.balance_loss=0", "experts.z_loss=0.1"}), "");
  }
  EXPECT_THAT(refusal_to_write("llama-tiny", {"experts.normalize=false"}), HasSubstr("normalize must be true"));
  EXPECT_THAT(refusal_to_write("llama-tiny", {"experts.dense_first=1"}), HasSubstr("dense_first must be 0"));
  EXPECT_THAT(refusal_to_write("llama-tiny", {"experts.every=2"}), HasSubstr("every must be 1"));
  EXPECT_THAT(refusal_to_write("llama-tiny", {"experts.dense=[0]"}), HasSubstr("dense must be []"));
  EXPECT_THAT(refusal_to_write("llama-tiny", {"attention_bias=true"}), HasSubstr("attention_bias must be false"));
  EXPECT_THAT(refusal_to_write("llama-tiny", {"mlp_bias=true"}), HasSubstr("mlp_bias must be false"));
  EXPECT_EQ(refusal_to_write("qwen3-tiny", {"experts.normalize=false", "experts.dense=[0]"}), "");
  EXPECT_THAT(refusal_to_write("qwen3-tiny", {"window=8",
                                              "layer_types=[\"full_attention\",\"sliding_attention\","
                                              "\"full_attention\",\"full_attention\"]"}),
              HasSubstr("layer_types must all be equal"));
}

TEST(ExpertFolder, NamesExpertsInBothForms) {
  const auto name_of = [](const ModelShape& shape, const std::string& ours) {
    for (const nn::ExternalName& name : shape.architecture->hugging_face.names(shape))
      if (name.ours == ours) return name;
    return nn::ExternalName{};
  };
  const ModelShape llama = read(mixtral());
  const std::string moe = "model.layers.2.block_sparse_moe.";
  EXPECT_THAT(name_of(llama, "blocks.2.mlp.router.weight").parts, ElementsAre(moe + "gate.weight"));
  nn::ExternalName name = name_of(llama, "blocks.2.mlp.experts.gate_up.weight");
  EXPECT_THAT(name.parts, ElementsAre(moe + "experts.{}.w1.weight", moe + "experts.{}.w3.weight"));
  EXPECT_TRUE(name.stacked);
  EXPECT_EQ(name.joint, "model.layers.2.mlp.experts.gate_up_proj");
  name = name_of(llama, "blocks.2.mlp.experts.down.weight");
  EXPECT_THAT(name.parts, ElementsAre(moe + "experts.{}.w2.weight"));
  EXPECT_EQ(name.joint, "model.layers.2.mlp.experts.down_proj");

  const ModelShape qwen3 = read(with(qwen(), {{"mlp_only_layers", {0}}}));
  EXPECT_THAT(name_of(qwen3, "blocks.0.mlp.gate_up.weight").parts,
              ElementsAre("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"));
  EXPECT_THAT(name_of(qwen3, "blocks.1.mlp.router.weight").parts, ElementsAre("model.layers.1.mlp.gate.weight"));
  const std::string expert = "model.layers.1.mlp.experts.{}.";
  EXPECT_THAT(name_of(qwen3, "blocks.1.mlp.experts.gate_up.weight").parts,
              ElementsAre(expert + "gate_proj.weight", expert + "up_proj.weight"));
  EXPECT_THAT(name_of(qwen3, "blocks.1.mlp.experts.down.weight").parts, ElementsAre(expert + "down_proj.weight"));
}

}  // namespace
}  // namespace colossal::models::expert_folder_test
