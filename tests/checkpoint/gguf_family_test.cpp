#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/complaint.h"
#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/checkpoint/gguf/family.h"
#include "colossal/checkpoint/gguf/weights.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::gguf_family_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json llama_config() {
  return {{"model_type", "llama"},
          {"max_position_embeddings", 64},
          {"hidden_size", 8},
          {"num_hidden_layers", 1},
          {"intermediate_size", 12},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"head_dim", 4},
          {"hidden_act", "silu"},
          {"vocab_size", 5},
          {"tie_word_embeddings", true},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"rope_scaling", nullptr}};
}

/// Writes a file with these values and an embedding; `more` adds tensors of 32 zeros with the given types.
std::string write(const test::TemporaryFolder& folder, const formats::GgufValues& values,
                  const std::vector<std::pair<std::string, const char*>>& more = {},
                  const std::vector<std::pair<std::string, std::vector<float>>>& lists = {}) {
  std::vector<formats::GgufTensor> tensors{{"token_embd.weight", {5, 8}, formats::gguf_type("F32")}};
  for (const auto& [name, numbers] : lists)
    tensors.push_back({name, {static_cast<int64_t>(numbers.size())}, formats::gguf_type("F32")});
  for (const auto& [name, type] : more)
    tensors.push_back({name, {1, formats::gguf_type(type)->block}, formats::gguf_type(type)});
  formats::GgufWriter writer(folder / "a.gguf", values, tensors);
  writer.write(std::string(5 * 8 * 4, '\0'));
  for (const auto& [name, numbers] : lists)
    writer.write({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
  for (const auto& [name, type] : more)
    writer.write(std::string(static_cast<size_t>(formats::gguf_type(type)->bytes), '\0'));
  writer.finish();
  return folder / "a.gguf";
}

json read_back(const json& config) {
  test::TemporaryFolder folder;
  const GgufModel model = gguf_of_config(config);
  return config_of_gguf(formats::GgufFile(write(folder, model.values, {}, model.tensors)));
}

/// Expects all values of `config` in `back`, which may have other keys too.
void expect_kept(const json& config, const json& back) {
  for (const auto& [key, value] : config.items()) EXPECT_EQ(back.value(key, json()), value) << key;
}

TEST(GgufFamily, RoundTripsConfigs) {
  expect_kept(llama_config(), read_back(llama_config()));
  json yarn = llama_config();
  yarn["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}, {"beta_fast", 16.0}};
  expect_kept(yarn, read_back(yarn));
  json linear = llama_config();
  linear["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 3.5}};
  expect_kept(linear, read_back(linear));
}

TEST(GgufFamily, RecognizesFactorsOfLlama3) {
  json config = llama_config();
  config["head_dim"] = 128, config["rope_scaling"] = {{"rope_type", "llama3"},
                                                      {"factor", 8.0},
                                                      {"low_freq_factor", 1.0},
                                                      {"high_freq_factor", 4.0},
                                                      {"original_max_position_embeddings", 8192}};
  expect_kept(config, read_back(config));
  config["rope_scaling"]["high_freq_factor"] = 5.0;  // not a model of Meta: the same frequencies under another name
  const json other = read_back(config).at("rope_scaling");
  EXPECT_EQ(other.at("rope_type"), "longrope");
  EXPECT_EQ(other.at("short_factor").size(), 64u);
  EXPECT_EQ(other.at("short_factor")[0], 1.0);
  EXPECT_EQ(other.at("attention_factor"), 1.0);
}

TEST(GgufFamily, RefusesConfigsThatAFileCannotStore) {
  const auto said = [](const char* key, const json& value) {
    json config = llama_config();
    config[key] = value;
    return test::complaint([&] { gguf_of_config(config); });
  };
  EXPECT_THAT(said("model_type", "opt"), HasSubstr("type opt cannot be written as GGUF"));
  EXPECT_THAT(said("hidden_act", "relu"), HasSubstr("can store only hidden_act = \"silu\": got \"relu\""));
  EXPECT_THAT(said("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}), HasSubstr("rope_type dynamic"));
}

TEST(GgufFamily, RefusesUnsupportedFiles) {
  const auto said = [](const std::string& key, const formats::GgufValue& value,
                       std::vector<std::pair<std::string, const char*>> tensors = {}) {
    test::TemporaryFolder folder;
    formats::GgufValues values = gguf_of_config(llama_config()).values;
    values[key] = value;
    const std::string path = write(folder, values, tensors);
    return test::complaint([&] {
      config_of_gguf(formats::GgufFile(path));
      GgufWeights weights(path);
    });
  };
  EXPECT_THAT(said("general.architecture", formats::GgufValue::text("mamba")),
              testing::AllOf(HasSubstr("the architecture must be one of llama, qwen2"), HasSubstr(": got mamba")));
  EXPECT_THAT(said("llama.expert_count", formats::GgufValue::integer(8)), HasSubstr("expert_count must be 0"));
  EXPECT_THAT(said("llama.logit_scale", formats::GgufValue::real(2)), HasSubstr("llama.logit_scale is not supported"));
  EXPECT_THAT(said("llama.attention.causal", formats::GgufValue::flag(false)), HasSubstr("causal must be true"));
  EXPECT_THAT(said("llama.rope.scaling.type", formats::GgufValue::text("su")), HasSubstr("none, linear or yarn"));
  EXPECT_THAT(said("llama.rope.dimension_count", formats::GgufValue::integer(2)), HasSubstr("dimension_count must be"));
  EXPECT_THAT(said("split.count", formats::GgufValue::integer(3)), HasSubstr("llama-gguf-split"));
  EXPECT_THAT(said("x", formats::GgufValue::integer(3), {{"blk.0.attn_q.weight", "IQ4_XS"}}),
              HasSubstr("blk.0.attn_q.weight has type IQ4_XS"));
}

TEST(GgufFamily, MapsNamesInBothDirections) {
  test::TemporaryFolder folder;
  const formats::GgufFile file(write(folder, {{"general.architecture", formats::GgufValue::text("llama")}}));
  for (const char* architecture : {"llama", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "gptneox", "bloom", "falcon"}) {
    const GgufFamily& family = family_of_architecture(architecture, "x");
    EXPECT_EQ(family_of_model_type(family.model_type), &family);
    for (const bool inside : {false, true})
      for (const GgufName& row : inside ? family.in_block : family.outside) {
        const std::string name = concat(inside ? "blk.17." : "", row.gguf, ".weight");
        const auto place = folder_place(family, name, file);
        ASSERT_TRUE(place) << name;
        EXPECT_EQ(gguf_place(family, place->name)->name, name);
      }
    EXPECT_FALSE(folder_place(family, "blk.x.attn_q.weight", file));
    EXPECT_FALSE(folder_place(family, "blk.1.attn_q.scale", file));
    EXPECT_FALSE(folder_place(family, "nothing.weight", file));
  }
}

TEST(GgufFamily, MapsOtherNamesForFalconsWithTwoNorms) {
  test::TemporaryFolder folder;
  const formats::GgufFile file(write(folder, {{"general.architecture", formats::GgufValue::text("falcon")}},
                                     {{"blk.0.attn_norm_2.weight", "F32"}}));
  const GgufFamily& family = family_of_architecture("falcon", "x");
  EXPECT_EQ(folder_place(family, "blk.0.attn_norm.weight", file)->name, "transformer.h.0.ln_mlp.weight");
  EXPECT_EQ(folder_place(family, "blk.0.attn_norm_2.weight", file)->name, "transformer.h.0.ln_attn.weight");
  EXPECT_EQ(folder_place(family, "blk.1.attn_norm.weight", file)->name, "transformer.h.1.input_layernorm.weight");
}

TEST(GgufFamily, InvertsItsConversions) {
  const GgufHeads heads{6, 3};
  const at::Tensor matrix = at::arange(48 * 5, at::kFloat).view({48, 5}), list = at::arange(48, at::kFloat);
  for (const GgufChange change : {GgufChange::None, GgufChange::Transposed, GgufChange::QueryPairs,
                                  GgufChange::KeyPairs, GgufChange::OneMore, GgufChange::Groups})
    for (const at::Tensor& tensor : {matrix, list})
      EXPECT_TRUE(to_folder(to_gguf(tensor, change, heads), change, heads).equal(tensor)) << static_cast<int>(change);
  // The halves 0 1 | 2 3 of a head become the pairs 0 2, 1 3.
  EXPECT_TRUE(to_gguf(at::arange(8), GgufChange::QueryPairs, {2, 1}).equal(at::tensor({0, 2, 1, 3, 4, 6, 5, 7})));
  // Two groups of q q k v with one feature become all q, all k, all v.
  EXPECT_TRUE(to_gguf(at::arange(8), GgufChange::Groups, {4, 2}).equal(at::tensor({0, 1, 4, 5, 2, 6, 3, 7})));
  EXPECT_THAT(test::complaint([&] { to_folder(at::arange(7), GgufChange::Groups, heads); }),
              HasSubstr("do not divide"));
  EXPECT_THAT(test::complaint([&] { to_folder(at::arange(7), GgufChange::KeyPairs, heads); }),
              HasSubstr("must be pairs of features"));
}

TEST(GgufWeights, HaveTheNamesOfTheFolder) {
  test::TemporaryFolder folder;
  const std::string path =
      write(folder, gguf_of_config(llama_config()).values, {{"blk.0.ffn_down.weight", "Q8_0"}, {"odd.weight", "F16"}});
  const GgufWeights weights(path);
  EXPECT_EQ(weights.entries().size(), 3u);
  EXPECT_EQ(weights.find("embed_tokens.weight", "model."), "model.embed_tokens.weight");
  EXPECT_EQ(weights.tensor("model.embed_tokens.weight").sizes(), at::IntArrayRef({5, 8}));
  EXPECT_EQ(weights.tensor("model.layers.0.mlp.down_proj.weight").scalar_type(), at::kFloat);
  EXPECT_EQ(weights.tensor("odd.weight").scalar_type(), at::kHalf);
  EXPECT_EQ(weights.raw("model.layers.0.mlp.down_proj.weight")->type, formats::gguf_type("Q8_0"));
  EXPECT_EQ(weights.file().bytes(*weights.raw("model.layers.0.mlp.down_proj.weight")).size(), 34u);
  EXPECT_EQ(weights.raw("x"), nullptr);
  EXPECT_NE(dynamic_cast<GgufWeights*>(open_weights(path).get()), nullptr);
}

}  // namespace
}  // namespace colossal::checkpoint::gguf_family_test
