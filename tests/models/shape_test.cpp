#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/families/bert.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::models::shape_test {
namespace {

// The published parameter counts of the models.
TEST(Presets, MatchPublishedParameterCounts) {
  const auto count = [](const char* name) {
    nn::Parameters parameters({}, {.without_memory = true});
    nn::SerialLayers layers(parameters);
    make_model(built_in().resolve({.name = name}), layers);
    return static_cast<double>(parameters.numel()) / 1e6;
  };
  EXPECT_NEAR(count("gpt2-small"), 124.44, 0.01);
  EXPECT_NEAR(count("gpt2-xl"), 1557.6, 0.1);
  EXPECT_NEAR(count("llama2-7b"), 6738.4, 0.1);
  EXPECT_NEAR(count("llama3-8b"), 8030.3, 0.1);
  EXPECT_NEAR(count("mistral-7b"), 7241.7, 0.1);
  EXPECT_NEAR(count("qwen2.5-0.5b"), 494.03, 0.01);
  EXPECT_NEAR(count("qwen2.5-7b"), 7615.6, 0.1);
  EXPECT_NEAR(count("qwen3-0.6b"), 596.05, 0.01);
  EXPECT_NEAR(count("qwen3-8b"), 8190.7, 0.1);
  EXPECT_NEAR(count("gemma2-2b"), 2614.3, 0.1);
  EXPECT_NEAR(count("gemma2-9b"), 9241.7, 0.1);
  EXPECT_NEAR(count("gemma2-27b"), 27227.1, 0.1);
  EXPECT_NEAR(count("phi3-mini"), 3821.1, 0.1);
  EXPECT_NEAR(count("phi3-medium"), 13960.2, 0.1);
  EXPECT_NEAR(count("bert-base"), 109.514, 0.001);  // BertForMaskedLM of bert-base-uncased
  EXPECT_NEAR(count("vit-base-16"), 86.57, 0.01);
  EXPECT_NEAR(count("vit-large-16"), 304.33, 0.01);
  EXPECT_NEAR(count("gpt3-175b"), 175e3, 1500);
}

TEST(Presets, DeclareThePublishedParametersOfMixtures) {
  const auto count = [](const char* name) {
    nn::Parameters parameters({}, {.without_memory = true});
    nn::SerialLayers layers(parameters);
    make_model(built_in().resolve({.name = name}), layers);
    return parameters.numel();
  };
  EXPECT_EQ(count("mixtral-8x7b"), 46'702'792'704);
  EXPECT_EQ(count("qwen3-30b-a3b"), 30'532'122'624);
}

TEST(Presets, BuildModelsOfTheirShape) {
  for (const char* name :
       {"gpt2-tiny", "llama-tiny", "qwen2.5-tiny", "qwen3-tiny", "gemma2-tiny", "phi3-tiny", "bert-tiny"}) {
    const ModelShape shape = built_in().resolve({.name = name});
    nn::Parameters parameters({}, {});
    nn::SerialLayers layers(parameters);
    const Model model = make_model(shape, layers);
    EXPECT_EQ(static_cast<int64_t>(model.blocks.size()), shape.layers);
    EXPECT_EQ(parameters.at("embedding.weight").spec.shape, (std::vector<int64_t>{shape.vocabulary, shape.hidden}));
    for (const auto& external : shape.architecture->hugging_face.names(shape))
      EXPECT_NO_THROW(parameters.at(external.ours));
    EXPECT_EQ(parameters.size(), shape.architecture->hugging_face.names(shape).size());
  }
}

TEST(Resolve, ChangesSizesGivenInConfig) {
  const ModelShape s = built_in().resolve({.name = "gpt2-tiny", .hidden = 64, .layers = 2, .dropout = 0.1}, 300);
  EXPECT_EQ(s.hidden, 64);
  EXPECT_EQ(s.ffn, 256);
  EXPECT_EQ(s.head_dim, 16);
  EXPECT_EQ(s.layers, 2);
  EXPECT_EQ(s.vocabulary, 300);
  EXPECT_EQ(s.dropout, 0.1);
  EXPECT_EQ(built_in().resolve({.name = "qwen3-tiny", .heads = 2}).head_dim, 32) << "chosen freely";
}

TEST(Resolve, NamesNearestPresetAndRule) {
  EXPECT_NE(test::thrown_message([] { built_in().resolve({.name = "gpt2-smal"}); }).find("did you mean `gpt2-small`?"),
            std::string::npos);
  EXPECT_NE(test::thrown_message([] {
              built_in().resolve({.name = "gpt2-tiny", .heads = 7});
            }).find("hidden must be divisible by heads: got hidden 128, heads 7"),
            std::string::npos);
  EXPECT_NE(test::thrown_message([] {
              built_in().resolve({.name = "llama-tiny", .heads = 8, .kv_heads = 3});
            }).find("multiple of kv_heads"),
            std::string::npos);
}

TEST(Resolve, RefusesGroupedQueriesThatFoldersCannotStore) {
  for (const char* name : {"gpt2-tiny", "bert-tiny", "vit-tiny-cifar"}) {
    const std::string message =
        test::thrown_message([&] { built_in().resolve({.name = name, .heads = 4, .kv_heads = 2}); });
    EXPECT_NE(message.find("must have kv_heads = heads, because its config.json has no key for kv_heads: got 2 and 4"),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(built_in().resolve({.name = "llama-tiny", .heads = 4, .kv_heads = 2}).kv_heads, 2);
}

TEST(Resolve, KeepsOneKvHeadWhenHeadsChange) {
  EXPECT_EQ(built_in().resolve({.name = "palm-tiny", .heads = 2}).kv_heads, 1);
  EXPECT_EQ(built_in().resolve({.name = "falcon-tiny", .heads = 8}).kv_heads, 1);
  EXPECT_EQ(built_in().resolve({.name = "falcon-tiny", .heads = 8, .kv_heads = 8}).kv_heads, 8);
  EXPECT_EQ(built_in().resolve({.name = "llama-tiny", .heads = 16}).kv_heads, 16);
}

TEST(Resolve, RefusesKeysWithoutEffect) {
  const auto refusal = [](const char* name, const std::vector<std::string>& keys) {
    return test::thrown_message([&] { built_in().resolve({.name = name, .own = own_keys(keys)}); });
  };
  EXPECT_NE(refusal("falcon-tiny", {"alibi=true", "rope_theta=500"}).find("which has no rotary positions"),
            std::string::npos);
  EXPECT_EQ(refusal("falcon-tiny", {"alibi=true"}), "");
  EXPECT_NE(refusal("opt-tiny", {"norm_first=false", "final_norm=false"})
                .find("final_norm has no effect with norm_first = false"),
            std::string::npos);
  EXPECT_EQ(refusal("opt-tiny", {"final_norm=false"}), "");
}

TEST(HuggingFaceConfig, DefaultsKvHeadsLikeTransformers) {
  const auto kv_heads = [](const char* preset, bool null) {
    const ModelShape shape = built_in().resolve({.name = preset});
    nlohmann::json j = shape.architecture->hugging_face.to_json(shape);
    j["num_attention_heads"] = 64, j["hidden_size"] = 64 * 64, j["head_dim"] = 64;
    j.erase("num_key_value_heads");
    if (null) j["num_key_value_heads"] = nullptr;
    return built_in().shape_of(j).kv_heads;
  };
  for (const char* preset : {"llama-tiny", "phi3-tiny"}) EXPECT_EQ(kv_heads(preset, false), 64) << preset;
  for (const char* preset : {"qwen2.5-tiny", "qwen3-tiny"}) EXPECT_EQ(kv_heads(preset, false), 32) << preset;
  for (const char* preset : {"llama-tiny", "phi3-tiny", "qwen2.5-tiny", "qwen3-tiny"})
    EXPECT_EQ(kv_heads(preset, true), 64) << preset;
  EXPECT_EQ(kv_heads("mistral-7b", false), 8);
  EXPECT_EQ(kv_heads("gemma2-tiny", false), 4);
  for (const char* preset : {"mistral-7b", "gemma2-tiny"})
    EXPECT_NE(test::thrown_message([&] { kv_heads(preset, true); }).find("must be an integer: got null"),
              std::string::npos);
}

TEST(Resolve, RefusesMistralWithBiases) {
  const std::string message =
      test::thrown_message([] { built_in().resolve({.name = "mistral-7b", .own = own_keys({"mlp_bias=true"})}); });
  EXPECT_NE(message.find("attention_bias and mlp_bias must be false with a window"), std::string::npos) << message;
}

TEST(HuggingFaceConfig, RoundTrips) {
  for (const char* name : {"gpt2-small", "llama3.1-8b", "llama2-70b", "mistral-7b", "qwen2.5-7b", "qwen3-0.6b",
                           "vit-tiny-cifar", "vit-large-16", "bert-base"}) {
    const ModelShape shape = built_in().resolve({.name = name});
    EXPECT_EQ(built_in().shape_of(shape.architecture->hugging_face.to_json(shape)), shape) << name;
  }
  const ModelShape biased =
      built_in().resolve({.name = "llama-tiny", .own = own_keys({"attention_bias=true", "mlp_bias=true"})});
  const nlohmann::json j = built_in().at("llama")->hugging_face.to_json(biased);
  EXPECT_EQ(j["attention_bias"], true);
  EXPECT_EQ(built_in().shape_of(j), biased);
  const ModelShape windowed = built_in().resolve({.name = "llama3.1-8b", .own = own_keys({"window=4096"})});
  nlohmann::json mistral = built_in().at("llama")->hugging_face.to_json(windowed);
  EXPECT_EQ(mistral["model_type"], "mistral");
  EXPECT_EQ(built_in().shape_of(mistral), windowed);
  mistral.erase("sliding_window");  // transformers' default
  EXPECT_EQ(built_in().shape_of(mistral), windowed);
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(built_in().shape_of(mistral), built_in().resolve({.name = "llama3.1-8b"}));
}

TEST(Resolve, AllowsBertHeadThatDiffersFromFolder) {
  test::TemporaryFolder folder;
  const ModelShape saved = built_in().resolve({.name = "bert-tiny", .hidden = 32, .layers = 1});
  folder.write("config.json", built_in().at("bert")->hugging_face.to_json(saved).dump());
  const auto from = [&](const ConfigDocument& own) { return ModelConfig{.from = folder.path(), .own = own}; };
  EXPECT_EQ(built_in().resolve(from({})), saved);
  const ModelShape classifier = built_in().resolve(from(own_keys({"objective=class", "classes=7"})));
  EXPECT_EQ(classifier.task().objective, "class");
  EXPECT_EQ(classifier.task().classes, 7);
  EXPECT_FALSE(classifier.tied);
  EXPECT_EQ(built_in().resolve(from(own_keys({"objective=class", "classes=7", "types=2"}))), classifier);
  const std::string message =
      test::thrown_message([&] { built_in().resolve(from(own_keys({"objective=class", "types=3"}))); });
  EXPECT_NE(message.find("sizes come from the folder"), std::string::npos);
  EXPECT_NE(message.find(": remove types from [model]"), std::string::npos) << message;

  // The change back: the head for masked tokens shares the embedding's weight again.
  folder.write("config.json", built_in().at("bert")->hugging_face.to_json(classifier).dump());
  EXPECT_EQ(built_in().resolve(from({})), classifier);
  ModelShape again = built_in().resolve(from(own_keys({"objective=masked-token", "classes=2"})));
  EXPECT_TRUE(again.tied);
  EXPECT_EQ(again, saved);
}

TEST(Resolve, ExtendsTheContextOfAFolder) {
  test::TemporaryFolder folder;
  const auto write = [&](const ModelShape& shape) {
    folder.write("config.json", shape.architecture->hugging_face.to_json(shape).dump());
  };
  const auto extended = [&](int64_t positions, const std::vector<std::string>& own) {
    return built_in().resolve({.from = folder.path(), .positions = positions, .own = own_keys(own)});
  };
  const auto refusal = [&](int64_t positions, const std::vector<std::string>& own) {
    return test::thrown_message([&] { extended(positions, own); });
  };
  const ModelShape llama = built_in().resolve({.name = "llama-tiny", .positions = 512});
  write(llama);
  const std::vector<std::vector<std::string>> scalings{
      {},
      {"rope_theta=500000"},
      {"rope_type=linear", "rope_factor=16"},
      {"rope_type=dynamic", "rope_factor=16", "rope_original_positions=512"},
      {"rope_type=yarn", "rope_factor=16", "rope_original_positions=512"},
      {"rope_type=llama3", "rope_factor=16", "rope_original_positions=512"}};
  for (const std::vector<std::string>& own : scalings) {
    const ModelShape longer = extended(8192, own);
    EXPECT_EQ(longer.positions, 8192);
    EXPECT_EQ(longer.own == llama.own, own.empty());
    EXPECT_EQ(built_in().shape_of(llama.architecture->hugging_face.to_json(longer)), longer)
        << (own.empty() ? "" : own[0]);
  }
  EXPECT_THAT(refusal(0, {"rope_theta=500000"}), testing::HasSubstr("to extend the context, set model.positions too"));
  EXPECT_THAT(refusal(256, {}), testing::HasSubstr("remove positions from [model], or raise positions to more than"));
  EXPECT_THAT(refusal(8192, {"window=7"}), testing::HasSubstr("remove window from [model]"));
  EXPECT_THAT(refusal(8192, {"rope_type=yarn", "rope_factor=16"}),
              testing::HasSubstr("set model.rope_original_positions to the longest sequence"));
  for (const char* alibi : {"bloom-560m", "falcon-rw-1b"}) {
    ModelShape shape = built_in().resolve({.name = alibi});
    write(shape);
    shape.positions *= 4;
    EXPECT_EQ(extended(shape.positions, {}), shape) << alibi;
  }
  for (const char* table : {"gpt2-tiny", "bert-tiny", "opt-tiny"}) {
    write(built_in().resolve({.name = table}));
    EXPECT_THAT(refusal(8192, {}), testing::HasSubstr("the folder has a table of ")) << table;
  }
}

TEST(Resolve, ReadsSourcesThatTheCallerHasRead) {
  const Registry registry = built_in();
  const ModelShape llama = registry.resolve({.name = "llama-tiny"}), palm = registry.resolve({.name = "palm-tiny"});
  const nlohmann::json config = llama.architecture->hugging_face.to_json(llama);
  ModelConfig longer{.from = "nowhere", .positions = 2 * llama.positions};
  ModelShape want = llama;
  want.positions = longer.positions;
  EXPECT_EQ(registry.resolve_from(config, longer), want);
  EXPECT_EQ(registry.resolve_from(config, {.from = "nowhere"}), llama);
  EXPECT_EQ(registry.resolve_from(palm, {.from = "nowhere"}), palm) << "it has no config.json";
  longer.hidden = 512;
  EXPECT_THAT(test::thrown_message([&] { registry.resolve_from(config, longer); }),
              testing::HasSubstr("sizes come from the folder nowhere: remove hidden from [model]"));
  EXPECT_THAT(test::thrown_message([&] { registry.resolve_from(palm, longer); }), testing::HasSubstr("remove hidden"));
}

TEST(HuggingFaceConfig, KeepsClassNames) {
  const ConfigDocument bert = own_keys({"objective=class", "classes=2", R"(class_names=["good","bad"])"});
  for (const ModelConfig& config :
       {ModelConfig{.name = "bert-tiny", .own = bert},
        ModelConfig{.name = "vit-tiny-cifar", .own = own_keys({"classes=2", R"(class_names=["good","bad"])"})}}) {
    const ModelShape shape = built_in().resolve(config);
    nlohmann::json j = shape.architecture->hugging_face.to_json(shape);
    EXPECT_EQ(j["id2label"], (nlohmann::json{{"0", "good"}, {"1", "bad"}}));
    EXPECT_EQ(j["label2id"], (nlohmann::json{{"good", 0}, {"bad", 1}}));
    EXPECT_EQ(built_in().shape_of(j), shape);
    j["id2label"] = {{"0", "good"}, {"2", "bad"}};
    const std::string message = test::thrown_message([&] { built_in().shape_of(j); });
    EXPECT_NE(message.find("the keys of id2label must be 0 to 1: got none for 1"), std::string::npos) << message;
  }
}

TEST(HuggingFaceConfig, ReadsClassNamesOnlyForClassifiers) {
  const ModelShape masked = built_in().resolve({.name = "bert-tiny"});
  nlohmann::json j = masked.architecture->hugging_face.to_json(masked);
  j["id2label"] = {{"0", nullptr}, {"7", 1}};
  EXPECT_EQ(built_in().shape_of(j).task().objective, "masked-token");
  const ModelShape classifier = built_in().resolve({.name = "bert-tiny", .own = own_keys({"objective=class"})});
  j = classifier.architecture->hugging_face.to_json(classifier);
  j["id2label"] = {{"0", 7}, {"1", "crane"}, {"2", "crane"}};  // ImageNet has two classes with that name
  EXPECT_EQ(built_in().shape_of(j).task().class_names, (std::vector<std::string>{"7", "crane", "crane"}));
}

TEST(HuggingFaceConfig, RefusesOwnSizesOutOfRange) {
  const auto refusal = [](const char* preset, const char* key, const nlohmann::json& value) {
    const ModelShape shape = built_in().resolve({.name = preset});
    nlohmann::json j = shape.architecture->hugging_face.to_json(shape);
    j[key] = value;
    return test::thrown_message([&] { built_in().shape_of(j); });
  };
  const auto expect = [](const std::string& message, const std::string& wanted) {
    EXPECT_NE(message.find(wanted), std::string::npos) << message;
  };
  expect(refusal("bert-tiny", "num_labels", 1'000'000'000'000), "classes must be between 1 and 16777216: got 10000");
  expect(refusal("bert-tiny", "num_labels", -5), "classes must be between 1 and 16777216: got -5");
  expect(refusal("bert-tiny", "id2label", nlohmann::json::object()), "classes must be between 1 and 16777216: got 0");
  expect(refusal("bert-tiny", "type_vocab_size", 0), "types must be between 1 and 1099511627775: got 0");
  expect(refusal("bert-tiny", "num_attention_heads", -3), "heads must be positive: got -3");
  expect(refusal("vit-tiny-cifar", "num_channels", int64_t{1} << 62), "channels must be between 1 and 1099511627775");
  expect(refusal("vit-tiny-cifar", "num_attention_heads", 0), "heads must be positive: got 0");
  expect(refusal("llama-tiny", "rope_theta", 0.5), "rope_theta must be between 1 and 1e+12: got 0.5");
}

TEST(ModelShape, NamesInconsistentSize) {
  ModelShape shape = built_in().resolve({.name = "bert-tiny", .own = own_keys({"objective=class"})});
  shape.tied = true;
  const std::string message = test::thrown_message([&] { shape.validate(); });
  EXPECT_NE(message.find("got tied 1, which must be 0"), std::string::npos) << message;
}

TEST(HuggingFaceConfig, StoresObjectiveOfBert) {
  const auto bert = built_in().at("bert");
  for (const char* objective : {"masked-token", "class"}) {
    const ModelShape shape = built_in().resolve(
        {.name = "bert-tiny", .own = own_keys({std::string("objective=") + objective, "classes=4"})});
    const auto j = bert->hugging_face.to_json(shape);
    EXPECT_EQ(built_in().shape_of(j), shape) << objective;
    EXPECT_EQ(j["architectures"][0], shape.tied ? "BertForMaskedLM" : "BertForSequenceClassification");
  }
  auto j = bert->hugging_face.to_json(built_in().resolve({.name = "bert-tiny"}));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = j;
    changed[key] = value;
    return test::thrown_message([&] { built_in().shape_of(changed); });
  };
  EXPECT_NE(with("position_embedding_type", "relative_key").find("must be absolute: got relative_key"),
            std::string::npos);
  EXPECT_NE(with("is_decoder", true).find("is_decoder of a BERT must be false"), std::string::npos);
  EXPECT_NE(with("hidden_act", "prelu").find("hidden_act of a BERT must be "), std::string::npos);
  j = bert->hugging_face.to_json(
      built_in().resolve({.name = "bert-tiny", .own = own_keys({"objective=class", "activation=relu"})}));
  EXPECT_EQ(built_in().shape_of(j).own.as<BertSizes>().activation, "relu");
}

TEST(HuggingFaceConfig, RefusesUnsupportedValues) {
  auto j = built_in().at("llama")->hugging_face.to_json(built_in().resolve({.name = "llama-tiny"}));
  auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = j;
    changed[key] = value;
    return test::thrown_message([&] { built_in().shape_of(changed); });
  };
  EXPECT_NE(with("model_type", "mamba").find("model_type must be one of gpt2, "), std::string::npos);
  EXPECT_NE(with("model_type", "mamba").find(": got mamba"), std::string::npos);
  EXPECT_NE(with("hidden_act", "prelu").find("hidden_act of a LLaMA must be one of"), std::string::npos);
  EXPECT_NE(with("hidden_size", "large").find("hidden_size of a LLaMA must be an integer: got large"),
            std::string::npos);
  EXPECT_NE(with("num_hidden_layers", -3).find("layers must be positive"), std::string::npos);
  EXPECT_NE(with("num_attention_heads", 0).find("heads must be positive: got 0"), std::string::npos);
  EXPECT_NE(with("rope_scaling", {{"rope_type", "axial"}}).find("longrope: got axial"), std::string::npos);
  test::TemporaryFolder folder;
  const std::string brackets = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  folder.write("config.json", R"({"model_type":"llama","rope_scaling":)" + brackets + "}");
  const std::string message = test::thrown_message([&] { built_in().resolve({.from = folder.path()}); });
  EXPECT_NE(message.find("config.json: nested too deeply"), std::string::npos) << message;
}

/// A key that only training reads, and the preset of a family that has it.
struct TrainingKey {
  const char *preset, *key;
  std::vector<std::string> own{};
};

TEST(HuggingFaceConfig, RefusesOnlyTrainingOfKeysThatOnlyTrainingReads) {
  const Registry registry = built_in();
  std::vector<TrainingKey> keys{{"gpt2-tiny", "embd_pdrop"},
                                {"gptj-tiny", "embd_pdrop"},
                                {"gptj-tiny", "attn_pdrop"},
                                {"opt-tiny", "layerdrop"},
                                {"phi3-tiny", "resid_pdrop"},
                                {"mixtral-tiny", "router_jitter_noise"},
                                {"bert-tiny", "classifier_dropout", {"objective=class"}},
                                {"vit-tiny-cifar", "attention_probs_dropout_prob"}};
  for (const char* preset : {"llama-tiny", "mixtral-tiny", "qwen2.5-tiny", "qwen3-tiny", "gemma2-tiny", "phi3-tiny",
                             "deepseek-tiny", "pythia-tiny", "falcon-tiny", "opt-tiny", "bloom-tiny"})
    keys.push_back({preset, "attention_dropout"});
  const test::TemporaryFolder folder;
  const ModelConfig config{.from = folder.path()};
  for (const TrainingKey& key : keys) {
    const std::string what = concat(key.preset, " ", key.key);
    const ModelShape shape = registry.resolve({.name = key.preset, .own = own_keys(key.own)});
    nlohmann::json json = shape.architecture->hugging_face.to_json(shape);
    folder.write("config.json", json.dump());
    EXPECT_NO_THROW(registry.check_training(config)) << what;
    const ModelShape before = registry.shape_of(json);
    json[key.key] = 0.25;
    folder.write("config.json", json.dump());
    EXPECT_TRUE(registry.shape_of(json) == before) << what;
    EXPECT_NO_THROW(registry.resolve(config)) << what;
    const std::string message = test::thrown_message([&] { registry.check_training(config); });
    const std::string begin = concat(key.key, " of ", with_article(shape.architecture->name), " must be ");
    EXPECT_NE(message.find(begin), std::string::npos) << message;
    EXPECT_NE(message.find(" to train it: got 0.25; training here does not follow this key"), std::string::npos);
  }
  EXPECT_NO_THROW(registry.check_training({.name = "llama-tiny"}));
}

}  // namespace
}  // namespace colossal::models::shape_test
