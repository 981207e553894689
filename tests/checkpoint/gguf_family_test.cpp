#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/checkpoint/gguf/blocks.h"
#include "colossal/checkpoint/gguf/latent.h"
#include "colossal/checkpoint/gguf/tensor_names.h"
#include "colossal/checkpoint/gguf/weights.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

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

json mixtral_config() {
  json config = llama_config();
  for (const char* key : {"attention_bias", "mlp_bias"}) config.erase(key);
  config.update({{"model_type", "mixtral"}, {"num_local_experts", 3}, {"num_experts_per_tok", 2}});
  config["sliding_window"] = nullptr;
  return config;
}

json qwen_moe_config() {
  json config = llama_config();
  config.erase("mlp_bias");
  config.update({{"model_type", "qwen3_moe"},
                 {"num_experts", 3},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 32},
                 {"norm_topk_prob", true},
                 {"decoder_sparse_step", 1},
                 {"use_sliding_window", false}});
  config["mlp_only_layers"] = json::array();
  return config;
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
    return test::thrown_message([&] { gguf_of_config(config); });
  };
  EXPECT_THAT(said("model_type", "opt"), HasSubstr("type opt cannot be written as GGUF"));
  EXPECT_THAT(said("hidden_act", "relu"), HasSubstr("can store only hidden_act = \"silu\": got \"relu\""));
  EXPECT_THAT(said("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}), HasSubstr("rope_type dynamic"));
}

TEST(GgufFamily, RoundTripsConfigsOfMixtures) {
  expect_kept(mixtral_config(), read_back(mixtral_config()));
  expect_kept(qwen_moe_config(), read_back(qwen_moe_config()));
  EXPECT_EQ(gguf_of_config(mixtral_config()).values.at("general.architecture"), formats::GgufValue::text("llama"));
  EXPECT_EQ(gguf_of_config(qwen_moe_config()).values.at("qwen3moe.expert_feed_forward_length"),
            formats::GgufValue::integer(32));
}

TEST(GgufFamily, RefusesMixturesThatAFileCannotStore) {
  const auto said = [](json config, const char* key, const json& value) {
    config[key] = value;
    return test::thrown_message([&] { gguf_of_config(config); });
  };
  EXPECT_THAT(said(mixtral_config(), "sliding_window", 7), HasSubstr("can store only sliding_window = null: got 7"));
  EXPECT_THAT(said(qwen_moe_config(), "norm_topk_prob", false), HasSubstr("norm_topk_prob = true: got false"));
  EXPECT_THAT(said(qwen_moe_config(), "mlp_only_layers", {0}), HasSubstr("mlp_only_layers = []: got [0]"));
}

TEST(GgufFamily, RefusesUnsupportedFiles) {
  const auto said = [](const std::string& key, const formats::GgufValue& value,
                       std::vector<std::pair<std::string, const char*>> tensors = {}) {
    test::TemporaryFolder folder;
    formats::GgufValues values = gguf_of_config(llama_config()).values;
    values[key] = value;
    const std::string path = write(folder, values, tensors);
    return test::thrown_message([&] {
      config_of_gguf(formats::GgufFile(path));
      GgufWeights weights(path);
    });
  };
  EXPECT_THAT(said("general.architecture", formats::GgufValue::text("mamba")),
              testing::AllOf(HasSubstr("the architecture must be one of llama, qwen2"), HasSubstr(": got mamba")));
  EXPECT_THAT(said("llama.expert_count", formats::GgufValue::integer(8)), HasSubstr("llama.expert_used_count"));
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
  for (const char* model_type : {"llama", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "gemma2", "phi3",
                                 "gpt2", "gpt_neox", "bloom", "falcon"}) {
    ASSERT_NE(family_of_model_type(model_type), nullptr) << model_type;
    const GgufFamily& family = *family_of_model_type(model_type);
    EXPECT_EQ(&family_of_architecture(family.architecture, "x", family.has_experts), &family);
    for (const bool inside : {false, true})
      for (const GgufName& row : inside ? family.in_block : family.outside) {
        const std::string name = concat(inside ? "blk.17." : "", row.gguf, row.is_whole ? "" : ".weight");
        const auto place = folder_place(family, name, file);
        ASSERT_TRUE(place) << name;
        const bool is_stack = is_stack_name(place->name);
        const auto back = gguf_places(family, is_stack ? name_of_entry(place->name, 12) : place->name);
        const auto same = [&](const GgufPlace& one) { return one.name == name && one.entry == (is_stack ? 12 : -1); };
        EXPECT_EQ(std::ranges::count_if(back, same), row.is_old ? 0 : 1) << name;
        const bool is_latent = row.change == GgufChange::LatentKeys || row.change == GgufChange::LatentValues;
        EXPECT_EQ(back.size(), is_latent || row.is_old ? 2u : 1u) << name;
      }
    EXPECT_FALSE(folder_place(family, "blk.x.attn_q.weight", file));
    EXPECT_FALSE(folder_place(family, "blk.1.attn_q.scale", file));
    EXPECT_FALSE(folder_place(family, "nothing.weight", file));
  }
}

TEST(GgufFamily, DistinguishesArchitecturesByTheirExperts) {
  EXPECT_STREQ(family_of_architecture("llama", "x", true).model_type, "mixtral");
  EXPECT_THAT(test::thrown_message([] { family_of_architecture("gemma2", "x", true); }),
              HasSubstr("x: gemma2.expert_count must be 0"));
  EXPECT_THAT(test::thrown_message([] { family_of_architecture("qwen3moe", "x", false); }),
              HasSubstr("x: qwen3moe.expert_count must be above 0"));
  const GgufFamily& family = *family_of_model_type("mixtral");
  EXPECT_EQ(gguf_places(family, "model.layers.3.block_sparse_moe.experts.12.w3.weight").at(0).name,
            "blk.3.ffn_up_exps.weight");
  for (const char* name : {"model.layers.3.block_sparse_moe.experts.x.w3.weight", "model.layers.3.mlp.up_proj.weight",
                           "model.layers.3.block_sparse_moe.experts..w3.weight"})
    EXPECT_TRUE(gguf_places(family, name).empty()) << name;
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
  EXPECT_THAT(test::thrown_message([&] { to_folder(at::arange(7), GgufChange::Groups, heads); }),
              HasSubstr("do not divide"));
  EXPECT_THAT(test::thrown_message([&] { to_folder(at::arange(7), GgufChange::KeyPairs, heads); }),
              HasSubstr("must be pairs of features"));
}

TEST(GgufFamily, SplitsKeysAndValuesOfALatent) {
  const GgufHeads heads{.heads = 2, .kv_heads = 2, .nope = 2, .rotated = 2, .value = 1};
  const at::Tensor both = at::arange(18, at::kFloat).view({6, 3});  // of each head two rows of keys and one of values
  const at::Tensor keys = latent_keys(both, heads), values = latent_values(both, heads);
  EXPECT_TRUE(keys[0].equal(at::tensor({0.f, 3.f, 1.f, 4.f, 2.f, 5.f}).view({3, 2})));
  EXPECT_TRUE(values.equal(at::tensor({6.f, 7.f, 8.f, 15.f, 16.f, 17.f}).view({2, 1, 3})));
  EXPECT_TRUE(latent_joined(keys, values, heads).equal(both));
  EXPECT_THAT(test::thrown_message([&] { latent_keys(both.narrow(0, 0, 5), heads); }),
              HasSubstr("kv_b_proj must have 6 rows"));
  EXPECT_THAT(test::thrown_message([&] { latent_joined(values, values, heads); }), HasSubstr("attn_k_b must be"));
  EXPECT_THAT(test::thrown_message([&] { latent_joined(keys, keys, heads); }), HasSubstr("attn_v_b must be"));
  EXPECT_EQ(layer_of(*family_of_model_type("deepseek_v2"), "model.layers.12.enorm.weight"), 12);
  EXPECT_EQ(layer_of(*family_of_model_type("deepseek_v2"), "model.norm.weight"), -1);
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

/// Writes a Mixtral with one tensor, blk.0.ffn_down_exps of shape [count, 2, 32], of these values.
std::string write_stack(const test::TemporaryFolder& folder, const at::Tensor& values, const char* type) {
  const std::vector<formats::GgufTensor> tensors{
      {"token_embd.weight", {5, 8}, formats::gguf_type("F32")},
      {"blk.0.ffn_down_exps.weight", values.sizes().vec(), formats::gguf_type(type)}};
  std::string blocks(static_cast<size_t>(tensors[1].bytes()), '\0');
  encode_gguf(*tensors[1].type, values.const_data_ptr<float>(), values.numel(), blocks.data());
  formats::GgufWriter writer(folder / "a.gguf", gguf_of_config(mixtral_config()).values, tensors);
  writer.write(std::string(5 * 8 * 4, '\0'));
  const size_t half = blocks.size() / 2;
  writer.write_part(std::string_view(blocks).substr(0, half));
  writer.write_part(std::string_view(blocks).substr(half));
  writer.finish();
  return folder / "a.gguf";
}

TEST(GgufWeights, DecodeOverThreads) {
  test::TemporaryFolder folder;
  const int64_t size = int64_t{500} * 256;  // several pieces of at least 32768 elements
  const at::Tensor values = at::linspace(-1, 1, 3 * size, at::kFloat).view({3, 500, 256});
  for (const char* type : {"Q8_0", "Q4_0", "Q4_K"}) {
    const GgufWeights weights(write_stack(folder, values, type));
    const std::string name = "model.layers.0.block_sparse_moe.experts.1.w2.weight";
    const formats::GgufTensor& stack = *weights.raw(name);
    const at::Tensor serial = at::empty({500, 256}, at::kFloat);
    decode_gguf(*stack.type, weights.file().bytes(stack).data() + stack.bytes() / 3, size,
                serial.mutable_data_ptr<float>());
    EXPECT_TRUE(at::equal(weights.tensor(name), serial)) << type;
  }
}

TEST(GgufWeights, HaveATensorForEachExpert) {
  test::TemporaryFolder folder;
  const at::Tensor values = at::linspace(-1, 1, 3 * 2 * 32, at::kFloat).view({3, 2, 32});
  const std::string front = "model.layers.0.block_sparse_moe.experts.", end = ".w2.weight";
  for (const char* type : {"F32", "Q8_0"}) {
    const GgufWeights weights(write_stack(folder, values, type));
    EXPECT_EQ(weights.entries().size(), 4u);
    for (int64_t e = 0; e < 3; ++e) {
      const std::string name = concat(front, e, end);
      ASSERT_TRUE(weights.entries().contains(name)) << name;
      EXPECT_EQ(weights.entries().at(name)->shape, (std::vector<int64_t>{2, 32}));
      // Values of Q8_0 are rounded to multiples, at most 127, of a scale: the largest magnitude, at most 1, over 127.
      // The scale is rounded to binary16.
      const double bound = std::string(type) == "F32" ? 0 : (0.5 + 127 * 0x1p-11) / 127;
      EXPECT_LE((weights.tensor(name) - values[e]).abs().max().item<double>(), bound);
      const auto codes = weights.codes(name);
      ASSERT_EQ(codes.has_value(), std::string(type) == "Q8_0");
      const at::Tensor near = codes ? codes->values() : weights.tensor(name);
      EXPECT_LE((near - values[e]).abs().max().item<double>(), bound);
    }
    EXPECT_EQ(weights.raw(front + "2" + end)->name, "blk.0.ffn_down_exps.weight");
  }
  const std::string path = write_stack(folder, values.narrow(0, 0, 2).contiguous(), "F32");
  EXPECT_THAT(test::thrown_message([&] { GgufWeights weights(path); }),
              HasSubstr("blk.0.ffn_down_exps.weight must have a matrix for each of 3 experts: got 2"));
}

}  // namespace
}  // namespace colossal::checkpoint::gguf_family_test
