// The table `experts` of [model]: how it is read, what it refuses, and what it gives to the blocks.
#include "colossal/models/expert_keys.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/families/gpt2.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/families/qwen3.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/experts.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::models::expert_keys_test {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

/// Keys that all differ from their defaults, for a model of six layers.
const ExpertKeys kAll{.count = 12,
                      .used = 3,
                      .ffn = 20,
                      .shared = 2,
                      .dense_first = 1,
                      .every = 2,
                      .dense = {3, 4},
                      .score = "sigmoid",
                      .normalize = false,
                      .scale = 2.5,
                      .groups = 4,
                      .groups_used = 2,
                      .capacity = 1.25,
                      .balance_loss = 0.02,
                      .balance_over = "rank",
                      .z_loss = 0.001,
                      .bias = true,
                      .bias_rate = 0.01};

ExpertKeys experts_of(const ModelShape& shape) {
  if (shape.architecture->name == "gpt2") return shape.own.as<Gpt2Sizes>().experts;
  if (shape.architecture->name == "llama") return shape.own.as<LlamaSizes>().experts;
  return shape.own.as<Qwen3Sizes>().experts;
}

struct File {
  ModelConfig model;
  void fields(Fields& f) { f.section("model", model, ""); }
};

ModelConfig read(const std::string& toml, const std::vector<std::string>& flags = {}) {
  ConfigDocument document = ConfigDocument::parse(toml, "x.toml");
  for (const std::string& flag : flags) document.set(flag);
  File file;
  document.read(file);
  return file.model;
}

std::string refusal(const ModelConfig& config) {
  return test::thrown_message([&] { built_in().resolve(config); });
}

/// Returns the refusal of a llama-tiny of four layers with those keys of the table.
std::string refused(const std::vector<std::string>& keys) {
  std::vector<std::string> assignments;
  for (const std::string& key : keys) assignments.push_back("experts." + key);
  return refusal({.name = "llama-tiny", .own = own_keys(assignments)});
}

TEST(ExpertKeys, ReadEveryKeyFromFlagsAndTables) {
  const std::vector<KeyHelp> defaults = describe_config(ExpertKeys()), all = describe_config(kAll);
  std::vector<std::string> flags;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NE(all[i].default_value, defaults[i].default_value) << all[i].key;
    flags.push_back("--model.experts." + all[i].key + "=" + all[i].default_value);
  }
  for (const char* name : {"gpt2-tiny", "llama-tiny", "qwen3-tiny"}) {
    SCOPED_TRACE(name);
    const std::string section = concat("[model]\nname = \"", name, "\"\nlayers = 6\n");
    const ModelShape shape = built_in().resolve(read(section, flags));
    EXPECT_EQ(experts_of(shape), kAll);
    EXPECT_EQ(shape.part<models::MixtureSizes>().experts, 12);
    EXPECT_EQ(built_in().resolve(read(section + "[model.experts]\n" + to_toml(kAll))), shape);
    EXPECT_EQ(built_in().resolve({.name = name}).part<MixtureSizes>().experts, 0);
  }
}

TEST(ExpertKeys, ReadInlineTablesBelowFlags) {
  const std::string toml = "[model]\nname = \"llama-tiny\"\nexperts = { count = 8, used = 3 }\n";
  const ModelConfig config = read(toml, {"--model.experts.count=4", "--model.experts.dense=0,2"});
  ModelShape shape = built_in().resolve(config);
  EXPECT_EQ(experts_of(shape), (ExpertKeys{.count = 4, .used = 3, .dense = {0, 2}}));
  EXPECT_EQ(experts_of(built_in().resolve(read(toml, {"--model.experts={used = 1}"}))),
            (ExpertKeys{.count = 8, .used = 1}));
}

TEST(ExpertKeys, SurviveThePrintedConfig) {
  ModelConfig config = read("[model]\nname = \"qwen3-tiny\"\nlayers = 2\n",
                            {"--model.experts.count=4", "--model.experts.dense=0", "--model.experts.score=sigmoid",
                             "--model.window=3", "--model.layer_types=full_attention,sliding_attention"});
  const ModelShape shape = built_in().resolve(config);
  set_types(config, shape.own);
  const std::string printed = to_toml(File{config});
  EXPECT_THAT(printed, HasSubstr("experts.dense = [0]\n"));
  EXPECT_EQ(built_in().resolve(read(printed)), shape);
  EXPECT_EQ(to_toml(File{read(printed)}), printed);
}

TEST(ExpertKeys, StartWithoutBalanceLossIfThereAreBiases) {
  const auto strength = [](const std::vector<std::string>& keys) {
    return experts_of(built_in().resolve({.name = "mixtral-tiny", .own = own_keys(keys)})).balance_loss;
  };
  EXPECT_EQ(strength({}), 0.01);
  EXPECT_EQ(strength({"experts.bias=true"}), 0);
  EXPECT_EQ(strength({"experts.balance_loss=0.003", "experts.bias=true"}), 0.003);
  EXPECT_EQ(strength({"experts.bias=false"}), 0.01);
  ExpertKeys biased{.balance_loss = 0, .bias = true};
  ConfigDocument document;
  document.set("--bias=false");
  document.read(biased);
  EXPECT_EQ(biased, ExpertKeys());
}

TEST(ExpertKeys, SelectBlocksWithExperts) {
  const auto mixtures = [](const ExpertKeys& keys) {
    std::vector<int64_t> layers;
    for (int64_t layer = 0; layer < 6; ++layer)
      if (keys.is_mixture(layer)) layers.push_back(layer);
    return layers;
  };
  EXPECT_THAT(mixtures({}), IsEmpty());
  EXPECT_THAT(mixtures({.count = 4}), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(mixtures({.count = 4, .dense_first = 2}), ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(mixtures({.count = 4, .every = 2}), ElementsAre(1, 3, 5));
  EXPECT_THAT(mixtures({.count = 4, .every = 3}), ElementsAre(2, 5));
  EXPECT_THAT(mixtures({.count = 4, .dense = {0, 4}}), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(mixtures(kAll), ElementsAre(1, 5));
}

TEST(ExpertKeys, ReachTheBlocks) {
  const ModelShape shape{.ffn = 30};
  const BlockVariants blocks =
      with_experts([](int64_t layer) { return BlockVariant{.gated = layer == 1}; }, kAll, shape);
  const BlockVariant dense = blocks(0), mixture = blocks(1);
  EXPECT_EQ(dense.experts.count, 0);
  EXPECT_EQ(dense.shared_ffn, 0);
  EXPECT_FALSE(dense.gated);
  EXPECT_TRUE(mixture.gated);
  EXPECT_EQ(mixture.shared_ffn, 40);
  const nn::ExpertOptions& o = mixture.experts;
  EXPECT_EQ(o.count, 12);
  EXPECT_EQ(o.used, 3);
  EXPECT_EQ(o.ffn, 20);
  EXPECT_EQ(o.score, nn::ExpertOptions::Score::Sigmoid);
  EXPECT_FALSE(o.normalize);
  EXPECT_EQ(o.scale, 2.5);
  EXPECT_EQ(o.groups, 4);
  EXPECT_EQ(o.groups_used, 2);
  EXPECT_EQ(o.capacity, 1.25);
  EXPECT_EQ(o.balance_loss, 0.02);
  EXPECT_EQ(o.balance_over, nn::ExpertOptions::BalanceOver::Rank);
  EXPECT_EQ(o.z_loss, 0.001);
  EXPECT_TRUE(o.bias);
  EXPECT_EQ(o.bias_rate, 0.01);
  const BlockVariant plain = with_experts(BlockVariant(), {.count = 2, .shared = 3}, shape)(0);
  EXPECT_EQ(plain.experts.ffn, 30);
  EXPECT_EQ(plain.shared_ffn, 90);
  EXPECT_EQ(plain.experts.score, nn::ExpertOptions::Score::Softmax);
  EXPECT_EQ(plain.experts.balance_over, nn::ExpertOptions::BalanceOver::Batch);
}

TEST(ExpertKeys, RefuseWhatNoRouterCanChoose) {
  EXPECT_THAT(refused({"count=8", "used=9"}),
              HasSubstr("[experts] used must be from 1 to count: got 9 of 8 experts for model.experts"));
  EXPECT_EQ(refused({"count=8", "used=8"}), "");
  EXPECT_THAT(refused({"count=8", "groups=3"}),
              HasSubstr("[experts] groups must divide count: got 3 groups of 8 experts for model.experts"));
  EXPECT_THAT(refused({"count=8", "groups=2", "groups_used=3"}),
              HasSubstr("[experts] groups_used must be from 1 to groups: got 3 of 2 for model.experts"));
  EXPECT_THAT(refused({"count=8", "groups=2", "used=5"}),
              HasSubstr("[experts] used must not be above the experts of the groups used: got 5 of 4 experts"));
  EXPECT_EQ(refused({"count=8", "groups=2", "used=4"}), "");
  EXPECT_EQ(refused({"count=8", "groups=2", "groups_used=2", "used=8"}), "");
}

TEST(ExpertKeys, RefuseKeysThatFitNoBlock) {
  EXPECT_THAT(refused({"count=8", "dense=[0, 4]"}),
              EndsWith("[experts] dense must have indices of blocks, which are below layers: got 4 in a model of 4 "
                       "layers; remove it from model.experts.dense"));
  EXPECT_THAT(refused({"count=8", "dense=[-1]"}), HasSubstr("`model.experts.dense[0]` must be between 0 and"));
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{{"dense_first=4"},
                                                                                    {"every=5"},
                                                                                    {"dense=[0, 1, 2, 3]"},
                                                                                    {"every=2", "dense=[1, 3]"},
                                                                                    {"every=2", "dense_first=4"},
                                                                                    {"dense_first=1099511627775"}}) {
    std::vector<std::string> with_count = keys;
    with_count.emplace_back("count=8");
    EXPECT_THAT(refused(with_count),
                EndsWith("[experts] dense_first, every and dense must leave a block with experts: got none in 4 "
                         "layers; lower model.experts.dense_first or every, or set model.experts.count = 0"))
        << keys.front();
  }
  for (const char* key : {"dense_first=3", "every=4", "dense=[0, 1, 2]"}) EXPECT_EQ(refused({"count=8", key}), "");
}

TEST(ExpertKeys, RefuseKeysWithoutEffect) {
  EXPECT_THAT(refused({"shared=1", "capacity=1.25"}),
              EndsWith("[experts] count must be above 0 if other keys of model.experts are set: got count 0 with "
                       "shared, capacity; set model.experts.count, or remove the others"));
  EXPECT_THAT(refused({"count=8", "bias_rate=0.001"}),
              EndsWith("[experts] bias_rate needs bias = true, because it moves those biases: got 0.001; set "
                       "model.experts.bias = true or model.experts.bias_rate = 0"));
  EXPECT_EQ(refused({"count=8", "bias=true", "bias_rate=0.001"}), "");
  EXPECT_THAT(refused({"count=8", "shared=65536", "ffn=1099511627775"}),
              HasSubstr("[experts] shared * ffn must be at most 1099511627775: got shared 65536"));
}

TEST(ExpertKeys, RefuseNamesThatTheTableLacks) {
  EXPECT_THAT(refused({"cuont=8"}),
              HasSubstr("unknown key `model.experts.cuont`, did you mean `model.experts.count`?"));
  EXPECT_THAT(refusal({.name = "llama-tiny", .own = own_keys({"expert.count=8"})}),
              HasSubstr("unknown key `model.expert.count`, did you mean `model.experts.count`?"));
  EXPECT_THAT(refusal({.name = "llama-tiny", .own = own_keys({"experts=8"})}),
              HasSubstr("`model.experts` must be a table ([model.experts] and keys below it): got 8"));
  EXPECT_THAT(refused({"count=65537"}), HasSubstr("`model.experts.count` must be between 0 and 65536 (experts)"));
  EXPECT_THAT(refused({"score=tanh"}),
              HasSubstr("`model.experts.score` must be one of softmax, sigmoid: got \"tanh\""));
  ModelShape shape = built_in().resolve({.name = "mixtral-tiny"});
  shape.own = LlamaSizes{.experts = {.count = 8, .used = 0}};
  EXPECT_THAT(test::thrown_message([&] { shape.validate(); }),
              HasSubstr("[model] experts.used must be between 1 and 65536: got 0"));
}

TEST(ExpertKeys, NameTheArchitectureThatHasTheTable) {
  const auto owner = [](const ModelConfig& config, const std::string& key) {
    EXPECT_THAT(refusal(config), HasSubstr("`model." + key + "` is a key of models of architecture gpt2, and "));
  };
  owner({.name = "bloom-tiny", .own = own_keys({"experts.count=8"})}, "experts.count");
  owner({.name = "bloom-tiny", .own = own_keys({"experts.cuont=8"})}, "experts");
  owner({.name = "bloom-tiny", .own = own_keys({"experts=8"})}, "experts");
  owner(read("[model]\nname = \"bloom-tiny\"\nexperts = {}\n"), "experts");
  owner({.name = "qwen2.5-tiny", .own = own_keys({"experts.count=8"})}, "experts.count");
  EXPECT_THAT(refusal({.name = "llama-tiny", .own = own_keys({"scale_scores=true"})}),
              EndsWith("which has the keys rope_theta, rope_type, rope_factor, rope_original_positions, "
                       "rope_low_frequency_factor, rope_high_frequency_factor, rope_attention_factor, rope_mscale, "
                       "rope_mscale_all_dim, rope_beta_fast, rope_beta_slow, rope_truncate, rope_short_factors, "
                       "rope_long_factors, activation, attention_bias, mlp_bias, window, experts"));
}

struct MixedKeys {
  int64_t reach = 8;
  ExpertKeys experts{.count = 4};
  void fields(Fields& f) {
    f.integer("reach", reach, "tokens", "number of tokens that a token sees", 1, 64);
    expert_table(f, experts);
  }
  bool operator==(const MixedKeys&) const = default;
};

/// An architecture with experts, whose folders hold no sizes.
Architecture mixed() {
  return {.name = "mixed",
          .own = MixedKeys{},
          .make = [](const ModelShape&, nn::Layers&) { return Model(); },
          .settle = [](ModelShape& s) { settle_experts(s.own.as<MixedKeys>().experts, s); },
          .hugging_face = {.model_type = "mixed",
                           .names = [](const ModelShape&) { return std::vector<nn::ExternalName>(); },
                           .from_json =
                               [](const nlohmann::json&) {
                                 return ModelShape{.vocabulary = 20,
                                                   .hidden = 8,
                                                   .layers = 2,
                                                   .heads = 2,
                                                   .kv_heads = 2,
                                                   .head_dim = 4,
                                                   .ffn = 16,
                                                   .positions = 32,
                                                   .own = MixedKeys{.experts = {.count = 8, .bias = true}}};
                               },
                           .to_json = [](const ModelShape&) { return nlohmann::json::object(); },
                           .own_training = expert_training_keys()}};
}

TEST(ExpertKeys, DifferFromFoldersIfTheyConcernTraining) {
  const Registry registry = built_in().add(mixed());
  test::TemporaryFolder folder;
  folder.write("config.json", R"({"model_type": "mixed"})");
  const auto from = [&](const std::vector<std::string>& keys) {
    return registry.resolve({.from = folder.path(), .own = own_keys(keys)});
  };
  const ModelShape plain = from({});
  EXPECT_EQ(plain.part<MixtureSizes>().experts, 8);
  EXPECT_EQ(from({"experts.capacity=1.25", "experts.balance_loss=0.5", "experts.balance_over=rank",
                  "experts.z_loss=0.25", "experts.bias_rate=0.125", "experts.count=8", "reach=8"})
                .own.as<MixedKeys>()
                .experts,
            (ExpertKeys{.count = 8,
                        .capacity = 1.25,
                        .balance_loss = 0.5,
                        .balance_over = "rank",
                        .z_loss = 0.25,
                        .bias = true,
                        .bias_rate = 0.125}));
  EXPECT_THAT(
      test::thrown_message([&] { from({"experts.scale=2", "experts.capacity=2", "experts.count=4", "reach=4"}); }),
      EndsWith("sizes come from the folder " + folder.path() +
               ": remove reach, experts.count, experts.scale from [model]"));
  const std::vector<std::string> training = expert_training_keys();
  for (const KeyHelp& key : describe_config(kAll)) {
    if (key.key == "bias") continue;  // the folder's value
    const std::string name = "experts." + key.key;
    const bool allowed = std::find(training.begin(), training.end(), name) != training.end();
    const std::string message = test::thrown_message([&] { from({name + "=" + key.default_value}); });
    EXPECT_EQ(message.find("remove " + name + " from [model]") == std::string::npos, allowed) << message;
  }
}

TEST(Presets, GiveMixturesTheirExperts) {
  const auto experts = [](const char* name) { return experts_of(built_in().resolve({.name = name})); };
  EXPECT_EQ(experts("mixtral-8x7b"), (ExpertKeys{.count = 8, .used = 2}));
  EXPECT_EQ(experts("mixtral-tiny"), (ExpertKeys{.count = 8, .used = 2}));
  EXPECT_EQ(experts("qwen3-30b-a3b"), (ExpertKeys{.count = 128, .used = 8, .ffn = 768}));
  EXPECT_EQ(experts("qwen3-moe-tiny"), (ExpertKeys{.count = 16, .used = 4, .ffn = 88}));
  EXPECT_EQ(built_in().resolve({.name = "qwen3-30b-a3b"}).part<MixtureSizes>().experts, 128);
  EXPECT_EQ(built_in().resolve({.name = "mixtral-8x7b"}).own.as<LlamaSizes>().layout.rotary.theta, 1e6);
}

TEST(ModelShape, NamesTheNumberOfExpertsThatItsKeysHave) {
  ModelShape shape = built_in().resolve({.name = "mixtral-tiny"});
  shape.set(models::MixtureSizes{0});
  EXPECT_THAT(test::thrown_message([&] { shape.validate(); }), HasSubstr("got experts 0, which must be 8"));
}

}  // namespace
}  // namespace colossal::models::expert_keys_test
