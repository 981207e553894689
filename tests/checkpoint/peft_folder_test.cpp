// Folders of peft, written by hand as peft does.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/peft/folder.h"
#include "colossal/checkpoint/safetensors.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::checkpoint::peft_folder_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

constexpr const char* kQ = "base_model.model.model.layers.0.self_attn.q_proj";
constexpr const char* kDown = "base_model.model.model.layers.1.mlp.down_proj";

struct Files {
  json config{{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}, {"target_modules", {"q_proj", "down_proj"}}};
  Tensors tensors{{std::string(kQ) + ".lora_A.weight", at::arange(8.).view({2, 4})},
                  {std::string(kQ) + ".lora_B.weight", at::arange(6.).view({3, 2})},
                  {std::string(kDown) + ".lora_A.weight", at::arange(10.).view({2, 5})},
                  {std::string(kDown) + ".lora_B.weight", at::arange(8.).view({4, 2})}};
};

/// Writes the files with a change, and reads them.
PeftFolder changed(const std::function<void(Files&)>& change) {
  test::TemporaryFolder folder;
  Files files;
  change(files);
  write_file(folder.path() + "/adapter_config.json", files.config.dump());
  write_safetensors(folder.path() + "/adapter_model.safetensors", files.tensors);
  return PeftFolder(folder.path());
}

std::string refusal(const std::function<void(Files&)>& change) {
  return test::thrown_message([&] { changed(change); });
}

TEST(PeftFolder, FindsTheAdaptersOfModules) {
  const PeftFolder folder = changed([](Files&) {});
  ASSERT_EQ(folder.layers().size(), 2u);
  const PeftLayer& q = folder.layers().at("model.layers.0.self_attn.q_proj");
  EXPECT_TRUE(at::equal(q.a, at::arange(8.).view({2, 4})));
  EXPECT_TRUE(at::equal(q.b, at::arange(6.).view({3, 2})));
  EXPECT_EQ(q.rank, 2);
  EXPECT_EQ(q.scale, 3);
  EXPECT_TRUE(folder.trained().empty());
}

TEST(PeftFolder, FollowsPatternsOfRanksAndAlphas) {
  const PeftFolder folder = changed([](Files& f) {
    f.config["rank_pattern"] = {{"^model\\.layers\\.0\\..*q_proj", 3}};
    f.config["alpha_pattern"] = {{"down_proj", 5}, {"x_proj", 7}};
    f.config["use_rslora"] = true;
    f.tensors[std::string(kQ) + ".lora_A.weight"] = at::ones({3, 4});
    f.tensors[std::string(kQ) + ".lora_B.weight"] = at::ones({3, 3});
  });
  EXPECT_EQ(folder.layers().at("model.layers.0.self_attn.q_proj").rank, 3);
  EXPECT_DOUBLE_EQ(folder.layers().at("model.layers.0.self_attn.q_proj").scale, 6 / std::sqrt(3.));
  EXPECT_DOUBLE_EQ(folder.layers().at("model.layers.1.mlp.down_proj").scale, 5 / std::sqrt(2.));
}

TEST(PeftFolder, ReadsBothSpellingsOfMagnitudes) {
  const PeftFolder folder = changed([](Files& f) {
    f.config["use_dora"] = true;
    f.tensors[std::string(kQ) + ".lora_magnitude_vector"] = at::arange(3.);
    f.tensors[std::string(kDown) + ".lora_magnitude_vector.weight"] = at::arange(4.);
  });
  EXPECT_TRUE(at::equal(folder.layers().at("model.layers.0.self_attn.q_proj").magnitude, at::arange(3.)));
  EXPECT_TRUE(at::equal(folder.layers().at("model.layers.1.mlp.down_proj").magnitude, at::arange(4.)));
}

TEST(PeftFolder, FindsModulesThatTrainedWhole) {
  const PeftFolder folder = changed([](Files& f) {
    f.config["modules_to_save"] = {"lm_head", "norm"};
    f.tensors["base_model.model.lm_head.weight"] = at::ones({4, 4});
    f.tensors["base_model.model.model.norm.modules_to_save.weight"] = at::ones({4});
    f.tensors["base_model.model.model.layers.0.input_layernorm.weight"] = at::ones({4});  // as peft matches "norm"
  });
  EXPECT_EQ(folder.trained_modules(),
            (std::vector<std::string>{"lm_head", "model.layers.0.input_layernorm", "model.norm"}));
  EXPECT_TRUE(folder.trained().contains("lm_head.weight"));
  EXPECT_TRUE(folder.trained().contains("model.norm.weight"));
}

TEST(PeftFolder, WritesWhatItReads) {
  const PeftFolder first = changed([](Files& f) {
    f.config["use_dora"] = true;
    f.config["use_rslora"] = true;
    f.config["lora_dropout"] = 0.25;
    f.config["alpha_pattern"] = {{"down_proj", 5.5}};
    f.config["modules_to_save"] = {"lm_head"};
    f.tensors["base_model.model.lm_head.weight"] = at::ones({4, 4}).to(at::kBFloat16);
    f.tensors[std::string(kQ) + ".lora_magnitude_vector"] = at::arange(3.);
    f.tensors[std::string(kDown) + ".lora_magnitude_vector"] = at::arange(4.);
  });
  test::TemporaryFolder folder;
  first.write(folder.path());
  const PeftFolder again(folder.path());
  EXPECT_EQ(again.config().to_json(), first.config().to_json());
  ASSERT_EQ(again.layers().size(), first.layers().size());
  for (const auto& [name, layer] : first.layers()) {
    EXPECT_TRUE(at::equal(again.layers().at(name).a, layer.a));
    EXPECT_TRUE(at::equal(again.layers().at(name).b, layer.b));
    EXPECT_TRUE(at::equal(again.layers().at(name).magnitude, layer.magnitude));
    EXPECT_EQ(again.layers().at(name).scale, layer.scale);
  }
  EXPECT_TRUE(at::equal(again.trained().at("lm_head.weight"), at::ones({4, 4}).to(at::kBFloat16)));
  const json written = read_json_object(folder.path() + "/adapter_config.json", "test");
  EXPECT_EQ(written.at("lora_alpha"), 6);
  EXPECT_EQ(written.at("alpha_pattern").at("down_proj"), 5.5);
  EXPECT_EQ(written.at("task_type"), nullptr);
}

constexpr const char* kExperts = "base_model.model.model.layers.1.mlp.experts";

/// Adds adapters of three experts: down_proj [3, 4, 5], and gate_up_proj [3, 6, 4], whose rank differs.
void add_experts(Files& f) {
  f.config["target_parameters"] = {"experts.down_proj", "gate_up_proj"};
  f.config["rank_pattern"] = {{".*\\.gate_up_proj", 3}};
  const std::string outer = kExperts, inner = outer + ".base_layer";
  f.tensors[outer + ".lora_A.weight"] = at::arange(30.).view({6, 5});
  f.tensors[outer + ".lora_B.weight"] = at::arange(24.).view({4, 6});
  f.tensors[inner + ".lora_A.weight"] = at::arange(36.).view({9, 4});
  f.tensors[inner + ".lora_B.weight"] = at::arange(54.).view({6, 9});
}

TEST(PeftFolder, FindsAdaptersOfExperts) {
  const PeftFolder folder = changed(add_experts);
  ASSERT_EQ(folder.layers().size(), 4u);
  const PeftLayer &down = folder.layers().at("model.layers.1.mlp.experts.down_proj"),
                  &up = folder.layers().at("model.layers.1.mlp.experts.gate_up_proj");
  EXPECT_EQ(down.rank, 2);
  EXPECT_EQ(up.rank, 3);
  EXPECT_EQ(up.scale, 2);
  EXPECT_TRUE(at::equal(down.a[2], at::arange(20., 30).view({2, 5})));
  // seen as (out, r, E): the experts of one row of A are neighbours
  EXPECT_TRUE(at::equal(down.b[1], at::tensor({1., 4., 7., 10., 13., 16., 19., 22.}).view({4, 2})));
  EXPECT_EQ(up.b.sizes(), (at::IntArrayRef{3, 6, 3}));
  test::TemporaryFolder again;
  folder.write(again.path());
  Files files;
  add_experts(files);
  const SafetensorsReader reader(again.path() + "/adapter_model.safetensors");
  EXPECT_EQ(reader.entries().size(), files.tensors.size());
  for (const auto& [name, value] : files.tensors) EXPECT_TRUE(at::equal(reader.tensor(name), value)) << name;
  EXPECT_EQ(read_json_object(again.path() + "/adapter_config.json", "test").at("target_parameters"),
            files.config.at("target_parameters"));
}

TEST(PeftFolder, NamesTheWrapperOfOneParameterAfterTheModule) {
  const PeftFolder folder = changed([](Files& f) {
    f.config["target_parameters"] = {"mlp.experts.gate_up_proj"};
    f.tensors[std::string(kExperts) + ".lora_A.weight"] = at::ones({6, 4});
    f.tensors[std::string(kExperts) + ".lora_B.weight"] = at::ones({6, 6});
  });
  EXPECT_EQ(folder.layers().at("model.layers.1.mlp.experts.gate_up_proj").a.sizes(), (at::IntArrayRef{3, 2, 4}));
}

TEST(PeftFolder, RefusesExpertsThatDoNotFit) {
  const std::string outer = std::string(kExperts) + ".lora_A.weight";
  EXPECT_THAT(refusal([&](Files& f) {
                add_experts(f);
                f.config["target_parameters"] = {"experts.down_proj"};
              }),
              HasSubstr("must have an adapter of each of target_parameters: got 2 of model.layers.1.mlp.experts"));
  EXPECT_THAT(refusal([&](Files& f) {
                add_experts(f);
                f.tensors[outer] = at::ones({7, 5});
              }),
              HasSubstr("A of model.layers.1.mlp.experts.down_proj must be [r E, in]"));
  EXPECT_THAT(refusal([&](Files& f) { f.config["target_parameters"] = {"experts.down_proj"}; }),
              HasSubstr("must have the adapters of each of target_parameters: got none of experts.down_proj"));
  EXPECT_THAT(refusal([&](Files& f) {
                add_experts(f);
                f.config["use_dora"] = true;
              }),
              HasSubstr("use_dora must be false with target_parameters"));
}

TEST(PeftFolder, RefusesKeysThatItDoesNotHave) {
  const std::vector<std::pair<const char*, json>> others{{"lora_bias", true},
                                                         {"layer_replication", {{0, 1}}},
                                                         {"target_parameters", {"self_attn.q_proj.weight"}},
                                                         {"use_qalora", true},
                                                         {"use_bdlora", {{"nblocks", 2}}},
                                                         {"megatron_config", {{"a", 1}}},
                                                         {"eva_config", {{"rho", 2}}},
                                                         {"trainable_token_indices", {1, 2}},
                                                         {"alora_invocation_tokens", {5}},
                                                         {"init_lora_weights", "pissa"},
                                                         {"bias", "all"},
                                                         {"a_key_of_next_year", 1.5}};
  for (const auto& [key, value] : others)
    EXPECT_THAT(refusal([&](Files& f) { f.config[key] = value; }), AllOf(HasSubstr("[peft] "), HasSubstr(key)));
  for (const json& idle : {json(), json(false), json::array(), json::object(), json("")})
    EXPECT_NO_THROW(changed([&](Files& f) { f.config["a_key_of_next_year"] = idle; }));
  EXPECT_NO_THROW(changed([](Files& f) { f.config["init_lora_weights"] = "gaussian"; }));
}

TEST(PeftFolder, RefusesValuesThatAreWrong) {
  EXPECT_THAT(refusal([](Files& f) { f.config["peft_type"] = "IA3"; }), HasSubstr("must be LORA: got IA3"));
  EXPECT_THAT(refusal([](Files& f) { f.config["r"] = 0; }), HasSubstr("r must be a rank of at least 1: got 0"));
  EXPECT_THAT(refusal([](Files& f) { f.config["lora_alpha"] = "many"; }), HasSubstr("lora_alpha must be a number"));
  EXPECT_THAT(refusal([](Files& f) { f.config["alpha_pattern"] = {{"(", 1}}; }),
              HasSubstr("must have regular expressions: got ("));
  EXPECT_THAT(refusal([](Files& f) { f.config["r"] = 3; }), HasSubstr("must have the rank 3"));
  EXPECT_THAT(refusal([](Files& f) { f.config["modules_to_save"] = {"norm"}; }), HasSubstr("got none of norm"));
  EXPECT_THAT(refusal([](Files& f) { f.config["target_modules"].push_back("k_proj"); }),
              HasSubstr("got none of k_proj"));
}

TEST(PeftFolder, RefusesTensorsThatItCannotUse) {
  const std::string a = std::string(kQ) + ".lora_A.weight", b = std::string(kQ) + ".lora_B.weight";
  EXPECT_THAT(refusal([&](Files& f) { f.tensors[a] = at::ones({0}); }), HasSubstr("DeepSpeed ZeRO 3"));
  EXPECT_THAT(refusal([&](Files& f) { f.tensors.erase(b); }), HasSubstr("must have lora_A and lora_B: got A alone"));
  EXPECT_THAT(refusal([&](Files& f) { f.tensors[b] = at::ones({3, 1}); }),
              HasSubstr("must be [r, in], and B [out, r]"));
  EXPECT_THAT(refusal([&](Files& f) { f.tensors["lora"] = at::ones({1}); }), HasSubstr("must start with base_model."));
  EXPECT_THAT(refusal([&](Files& f) { f.tensors["base_model.model.lm_head.weight"] = at::ones({1}); }),
              HasSubstr("modules_to_save alone: got lm_head.weight"));
  EXPECT_THAT(refusal([&](Files& f) { f.tensors["base_model.model.wte.lora_embedding_A"] = at::ones({1}); }),
              HasSubstr("got one of an embedding"));
  EXPECT_THAT(refusal([&](Files& f) { f.config["use_dora"] = true; }), HasSubstr("got none"));
  EXPECT_THAT(refusal([&](Files& f) { f.tensors[std::string(kQ) + ".lora_magnitude_vector"] = at::ones({3}); }),
              HasSubstr("without use_dora: got one"));
}

TEST(PeftFolder, RefusesPicklesWithTheWayOut) {
  test::TemporaryFolder folder;
  write_file(folder.path() + "/adapter_config.json", Files().config.dump());
  EXPECT_THAT(test::thrown_message([&] { PeftFolder{folder.path()}; }),
              HasSubstr("must have adapter_model.safetensors: got none"));
  write_file(folder.path() + "/adapter_model.bin", "x");
  EXPECT_THAT(test::thrown_message([&] { PeftFolder{folder.path()}; }), HasSubstr("save_pretrained"));
}

}  // namespace
}  // namespace colossal::checkpoint::peft_folder_test
