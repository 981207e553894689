// The linear layers of folders that adapters find, in every family, and the table [adapter].
#include "colossal/run/adapter_modules.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/program.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::run::adapter_modules_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Names = std::set<std::string>;

models::ModelShape shape_of(const std::string& preset) { return models::built_in().resolve({.name = preset}); }

/// A LLaMA whose head is not its embedding.
models::ModelShape untied_llama() {
  models::ModelShape shape = shape_of("llama-tiny");
  shape.tied = false;
  return shape;
}

std::string last_of(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// Returns the last names of all linear modules.
Names linear_names(const std::string& preset) {
  Names names;
  const AdapterModules modules(shape_of(preset));
  for (const LinearModule& module : modules.linear()) names.insert(last_of(module.name));
  return names;
}

std::vector<std::string> tiny_presets() {
  std::vector<std::string> tiny;
  for (const std::string& name : models::built_in().preset_names())
    if (name.find("tiny") != std::string::npos) tiny.push_back(name);
  std::erase(tiny, "patch-discriminator-tiny");      // it has convolutions alone
  std::erase_if(tiny, [](const std::string& name) {  // their layers take no adapters
    return shape_of(name).part<models::FoldingSizes>().single > 0;
  });
  return tiny;
}

class AdapterFamilies : public testing::TestWithParam<std::string> {};

// Matrices of blocks in the folder, which are neither of experts nor of a router, are the linear layers.
TEST_P(AdapterFamilies, FindAllLinearLayersOfTheFolder) {
  const models::ModelShape shape = shape_of(GetParam());
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  std::map<std::string, std::vector<nn::ExternalRows>> parts;
  const std::vector<nn::ExternalName> names = folder_names(shape);
  for (const nn::ExternalName& name : names) parts[name.ours] = name.parts;
  std::multiset<std::string> want, got;
  int64_t rows = 0, found = 0;
  for (const nn::Parameter& p : parameters.declared()) {
    const bool in_block = p.name.starts_with("blocks.") || p.name.starts_with("head.multi_token.") ||
                          p.name.starts_with("norm.modulation.") ||  // a modulation behind the blocks
                          p.name.starts_with("modulation.") || p.name.starts_with("text.");  // of an STDiT, in front
    if (!in_block || p.spec.shape.size() != 2 || p.name.ends_with(".router.weight")) continue;
    if (p.name.ends_with(".modulation")) continue;      // a table of vectors
    if (p.name.ends_with(".eh_proj.weight")) continue;  // joins the ends of a model: it is no layer of a block
    if (p.between_blocks) continue;
    Names tensors;
    for (const nn::ExternalRows& part : parts[p.name]) tensors.insert(part.name);
    if (names.empty()) tensors.insert(p.name);
    for (const std::string& tensor : tensors) want.insert(tensor);
    rows += p.spec.shape[0];
  }
  const AdapterModules modules(shape);
  for (const LinearModule& module : modules.linear()) {
    if (module.is_stack() || module.is_convolution() || module.between_blocks) continue;
    got.insert(module.name + ".weight");
    found += module.part.count;
    EXPECT_EQ(module.in, parameters.at(module.weight).spec.shape[1]);
  }
  EXPECT_EQ(got, want);
  EXPECT_EQ(found, rows);
  // Where the own keys settle the layers, not every block has linear layers.
  if (shape.architecture->uses("layers")) EXPECT_GE(got.size(), static_cast<size_t>(4 * shape.layers));
  EXPECT_EQ(modules.selected("adapter.targets", {"all-linear"}, {}).size(), got.size());
}

// A run of any family trains only its adapters, which fit the layers of the family.
TEST_P(AdapterFamilies, DeclareAdaptersOfEachModule) {
  const models::ModelShape shape = shape_of(GetParam());
  for (const char* kind : {"lora", "dora"}) {
    const nn::Adapter adapter = low_rank_adapter({.kind = kind, .rank = 2}, shape);
    nn::Parameters parameters({},
                              {.treatment = adapter.treatment, .without_memory = true, .products = {adapter.product}});
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
    size_t matrices = 0;
    for (const nn::Parameter& p : parameters.declared()) {
      EXPECT_EQ(p.treatment.trains, nn::is_low_rank(p.name)) << p.name;
      EXPECT_EQ(p.treatment.saved, nn::is_low_rank(p.name)) << p.name;
      if (const auto name = nn::low_rank_name(p.name); name && name->matrix == 'a') ++matrices;
    }
    const AdapterModules modules(shape);
    EXPECT_EQ(matrices, modules.selected("adapter.targets", {"all-linear"}, {}).size());
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, AdapterFamilies, testing::ValuesIn(tiny_presets()), [](const auto& info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST(AdapterModules, RefuseModelsThatTakeNoAdapters) {
  const AdapterModules modules(shape_of("alphafold2-tiny"));
  EXPECT_THAT(test::thrown_message([&] { modules.selected("adapter.targets", {"all-linear"}, {}); }),
              testing::HasSubstr("must have linear layers that they can change: got none in the model of "
                                 "adapter.targets, such as one that folds proteins"));
}

TEST(AdapterModules, HaveTheNamesOfTheFolder) {
  EXPECT_EQ(linear_names("llama-tiny"),
            (Names{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}));
  EXPECT_EQ(linear_names("gpt2-tiny"), (Names{"c_attn", "c_proj", "c_fc"}));
  EXPECT_EQ(linear_names("bloom-tiny"), (Names{"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}));
  const AdapterModules modules(shape_of("llama-tiny"));
  const LinearModule& second = modules.linear()[1];
  const models::ModelShape shape = shape_of("llama-tiny");
  EXPECT_EQ(second.name, "model.layers.0.self_attn.k_proj");
  EXPECT_EQ(second.weight, "blocks.0.attention.qkv.weight");
  EXPECT_EQ(second.part.name, "k_proj");
  EXPECT_EQ(second.part.first, shape.heads * shape.head_dim);
  EXPECT_EQ(second.part.count, shape.kv_heads * shape.head_dim);
  EXPECT_EQ(modules.linear()[3].part.name, "") << "o_proj is all of its weight";
}

TEST(AdapterModules, FollowNamesPathsAndPatterns) {
  const AdapterModules modules(shape_of("llama-tiny"));
  const auto selected = [&](const std::vector<std::string>& patterns, const Names& except = {}) {
    std::vector<std::string> names;
    for (const size_t i : modules.selected("adapter.targets", patterns, except))
      names.push_back(modules.linear()[i].name);
    return names;
  };
  const size_t layers = static_cast<size_t>(shape_of("llama-tiny").layers);
  EXPECT_EQ(selected({"q_proj"}).size(), layers);
  EXPECT_EQ(selected({"self_attn.q_proj", "q_proj"}).size(), layers) << "each once";
  EXPECT_THAT(selected({"layers.1.self_attn.q_proj"}), ElementsAre("model.layers.1.self_attn.q_proj"));
  EXPECT_THAT(selected({"*.1.mlp.*"}),
              UnorderedElementsAre("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj",
                                   "model.layers.1.mlp.down_proj"));
  EXPECT_EQ(selected({"all-linear"}).size(), 7 * layers);
  EXPECT_EQ(selected({"all-linear"}, {"blocks.0.mlp.down.weight"}).size(), 7 * layers - 1);
  const auto refused = [&](const std::string& pattern, const Names& except = {}) {
    return test::thrown_message([&] { selected({pattern}, except); });
  };
  EXPECT_EQ(refused("q_prj"),
            "[adapter] adapter.targets must name modules of the model: got q_prj, did you mean `q_proj`?; there are "
            "all-linear, down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, also with the path before them "
            "or with * (*.all-linear)");
  EXPECT_THAT(refused("lm_head"), HasSubstr("got lm_head"));
  EXPECT_THAT(refused("*.9.mlp.down_proj"), HasSubstr("got *.9.mlp.down_proj"));
  EXPECT_THAT(refused("roj"), HasSubstr("got roj"));
  EXPECT_THAT(refused("down_proj", {"blocks.0.mlp.down.weight"}),
              HasSubstr("model.layers.0.mlp.down_proj must have an adapter or be trained whole, not both"));
}

models::ModelShape mixture_of(const std::string& preset) {
  return models::built_in().resolve({.name = preset, .own = models::own_keys({"experts.count=4"})});
}

// transformers 5 has one parameter for all experts of a layer, and folders have a matrix for each.
TEST(AdapterModules, HaveStacksOfExperts) {
  const models::ModelShape shape = mixture_of("llama-tiny");
  const AdapterModules modules(shape);
  const LinearModule& last = modules.linear().back();
  EXPECT_EQ(last.name, concat("model.layers.", shape.layers - 1, ".mlp.experts.down_proj"));
  const LinearModule& first = modules.linear()[modules.linear().size() - static_cast<size_t>(2 * shape.layers)];
  EXPECT_EQ(first.name, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(first.weight, "blocks.0.mlp.experts.gate_up.weight");
  EXPECT_EQ(first.shape_of_a(3), (std::vector<int64_t>{4, 3, shape.hidden}));
  EXPECT_EQ(first.shape_of_b(3), (std::vector<int64_t>{4, 2 * shape.ffn, 3}));
  ASSERT_EQ(first.apart.size(), 2u);
  EXPECT_EQ(first.apart[1].of(2), "model.layers.0.block_sparse_moe.experts.2.w3");
  EXPECT_EQ(first.apart[1].first, shape.ffn);
  const auto selected = [&](const std::string& pattern) {
    return modules.selected("adapter.targets", {pattern}, {}).size();
  };
  const auto layers = static_cast<size_t>(shape.layers);
  EXPECT_EQ(selected("all-linear"), 4 * layers) << "those of attention";
  EXPECT_EQ(selected("experts"), 2 * layers);
  EXPECT_EQ(selected("experts.down_proj"), layers);
  EXPECT_EQ(selected("*.experts.*"), 2 * layers);
  EXPECT_EQ(selected("layers.1.mlp.experts"), 2u);
  const auto refused = [&](const std::string& pattern) { return test::thrown_message([&] { selected(pattern); }); };
  EXPECT_THAT(refused("down_proj"), HasSubstr("there are all-linear, experts, experts.down_proj, "));
  EXPECT_THAT(refused("*.mlp.*"), HasSubstr("got *.mlp.*"));
  EXPECT_THAT(refused("gate"), HasSubstr("got gate")) << "the router has none";
  EXPECT_EQ(modules.short_names(modules.selected("adapter.targets", {"experts", "q_proj"}, {})),
            (std::vector<std::string>{"experts.down_proj", "experts.gate_up_proj", "q_proj"}));
  EXPECT_EQ(modules.short_names({0}), (std::vector<std::string>{"model.layers.0.self_attn.q_proj"}));
  // no folder has a GPT-2 with experts
  EXPECT_EQ(AdapterModules(mixture_of("gpt2-tiny")).linear().back().name,
            concat("blocks.", mixture_of("gpt2-tiny").layers - 1, ".mlp.experts.down"));
}

TEST(LowRankAdapter, TrainsAsManyParametersOfExpertsAsTheyHave) {
  const models::ModelShape shape = mixture_of("llama-tiny");
  const nn::Adapter adapter =
      low_rank_adapter({.kind = "lora", .rank = 3, .targets = {"experts"}, .ranks = {"experts.down_proj=2"}}, shape);
  nn::Parameters parameters({},
                            {.treatment = adapter.treatment, .without_memory = true, .products = {adapter.product}});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  const int64_t of_up = 3 * (shape.hidden + 2 * shape.ffn), of_down = 2 * (shape.ffn + shape.hidden);
  EXPECT_EQ(parameters.trained_numel(), shape.layers * 4 * (of_up + of_down));
  EXPECT_FALSE(parameters.at("blocks.0.mlp.router.weight").treatment.trains);
}

TEST(AdapterModules, NameParametersThatTrainWhole) {
  const AdapterModules untied(untied_llama()), tied(shape_of("gpt2-tiny"));
  EXPECT_THAT(untied.parameters_of("adapter.trained", {"lm_head", "embed_tokens"}),
              ElementsAre("embedding.weight", "head.weight"));
  EXPECT_THAT(untied.parameters_of("adapter.trained", {"layers.0.input_layernorm", "model.norm"}),
              ElementsAre("blocks.0.norm_1.weight", "norm.weight"));
  EXPECT_THAT(tied.parameters_of("adapter.trained", {"h.0.ln_1"}),
              ElementsAre("blocks.0.norm_1.bias", "blocks.0.norm_1.weight"));
  EXPECT_THAT(tied.parameters_of("adapter.trained", {"wte"}), ElementsAre("embedding.weight"));
  const auto refused = [](const AdapterModules& modules, const std::vector<std::string>& patterns) {
    return test::thrown_message([&] { modules.parameters_of("adapter.trained", patterns); });
  };
  EXPECT_THAT(
      refused(tied, {"lm_head"}),
      HasSubstr(
          "must name weights of their own: got lm_head, but lm_head is transformer.wte in this model; name wte, which "
          "trains both"));
  EXPECT_THAT(refused(untied, {"layers.0.self_attn.q_proj"}),
              HasSubstr("must name all modules of a matrix: blocks.0.attention.qkv.weight also has "
                        "model.layers.0.self_attn.k_proj; add k_proj"));
  EXPECT_THAT(refused(untied, {"lmhead"}), HasSubstr("did you mean `lm_head`?"));
}

// G59: LLaMA-7B, rank 16.
TEST(LowRankAdapter, TrainsAsManyParametersAsGolden) {
  const models::ModelShape shape = shape_of("llama2-7b");
  const auto counts = [&](const std::vector<std::string>& targets) {
    const nn::Adapter adapter = low_rank_adapter({.kind = "lora", .rank = 16, .targets = targets}, shape);
    nn::Parameters parameters(
        {},
        {.device = at::kMeta, .treatment = adapter.treatment, .without_memory = true, .products = {adapter.product}});
    nn::SerialLayers layers(parameters);
    models::make_model(shape, layers);
    return std::pair<int64_t, int64_t>(parameters.trained_numel(), parameters.numel() - parameters.trained_numel());
  };
  EXPECT_EQ(counts({"q_proj", "v_proj"}), (std::pair<int64_t, int64_t>(8388608, 6738415616)));
  EXPECT_EQ(counts({"all-linear"}), (std::pair<int64_t, int64_t>(39976960, 6738415616)));
}

TEST(LowRankAdapter, ScalesByAlphaAndRank) {
  EXPECT_DOUBLE_EQ((LowRankKeys{.rank = 4, .alpha = 6}).factor_of("q_proj"), 1.5);
  EXPECT_DOUBLE_EQ((LowRankKeys{.scale = "root", .rank = 4, .alpha = 6}).factor_of("q_proj"), 3);
  EXPECT_DOUBLE_EQ(LowRankKeys{}.factor_of("q_proj"), 2);
}

Config config_of(const std::string& toml) {
  Config config;
  ConfigDocument::parse(toml, "x.toml").read(config);
  return config;
}

TEST(LowRankAdapter, BelongsToTheTablesOfTheLibrary) {
  const auto adapter_of = [](const std::string& toml) {
    return choose_adapter(config_of(toml), built_in().adapters, untied_llama());
  };
  const ChosenAdapter none = adapter_of("[adapter]\n");
  EXPECT_FALSE(none.adapter.treatment || none.adapter.product);
  EXPECT_FALSE(adapter_of("").adapter.treatment);
  const ChosenAdapter lora = adapter_of("[adapter]\nkind = \"lora\"\ntrained = [\"lm_head\"]\n");
  EXPECT_TRUE(lora.adapter.treatment("head.weight").saved);
  EXPECT_TRUE(lora.adapter.treatment("blocks.0.mlp.down.adapter_a").trains);
  EXPECT_FALSE(lora.adapter.treatment("blocks.0.mlp.down.weight").trains);
  EXPECT_FALSE(lora.adapter.treatment("embedding.weight").saved);
  EXPECT_TRUE(lora.tables.values().contains("adapter.alpha"));
  const auto refused = [&](const std::string& keys) {
    return test::thrown_message([&] { adapter_of("[adapter]\nkind = \"lora\"\n" + keys); });
  };
  EXPECT_THAT(refused("rank = 4096\n"), HasSubstr("the smaller side of model.layers.0.self_attn.q_proj ["));
  EXPECT_THAT(refused("rank = 0\n"), HasSubstr("`adapter.rank` must be between 1"));
  EXPECT_THAT(refused("targets = [\"wq\"]\n"), HasSubstr("adapter.targets must name modules of the model: got wq"));
  EXPECT_THAT(refused("knd = \"lora\"\n"), HasSubstr("did you mean `adapter.kind`"));
  EXPECT_THAT(refused("dropout = 0.1\n[training]\ncuda_graph = true\n"),
              HasSubstr("adapter.dropout must be 0 with training.cuda_graph"));
}

TEST(LowRankAdapter, FitsTheModelOfItsExample) {
  const auto config = read_config<Config>(test::source_dir() + "/examples/lora.toml", {});
  const models::ModelShape shape = models::built_in().resolve(config.model, 257);
  EXPECT_TRUE(bool(choose_adapter(config, built_in().adapters, shape).adapter.product));
}

}  // namespace
}  // namespace colossal::run::adapter_modules_test
