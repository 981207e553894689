#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/temporary_folder.h"
#include "colossal/base/error.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "support/ranks_values.h"

namespace colossal::models::shape_test {
namespace {

// The parameter counts that the models are known by.
TEST(Presets, HaveThePublishedNumberOfParameters) {
  auto count = [](const char* name, double untied_extra = 0) {
    const ModelShape s = resolve({.name = name});
    return static_cast<double>(architecture(s.architecture).matrix_elements(s)) / 1e6 + untied_extra;
  };
  EXPECT_NEAR(count("gpt2-small") + 1024 * 768 / 1e6, 124.4, 0.3);  // + learned positions
  EXPECT_NEAR(count("gpt2-xl") + 1024 * 1600 / 1e6, 1557.6, 2);
  EXPECT_NEAR(count("llama2-7b") + 32000 * 4096 / 1e6, 6738, 1);  // + the embedding, which is not tied
  EXPECT_NEAR(count("llama3-8b") + 128256 * 4096 / 1e6, 8030, 1);
  EXPECT_NEAR(count("gpt3-175b"), 175e3, 1500);
}

TEST(Presets, BuildWhatTheirShapeSays) {
  for (const char* name : {"gpt2-tiny", "llama-tiny"}) {
    const ModelShape shape = resolve({.name = name});
    nn::Parameters parameters({}, {});
    nn::SerialLayers layers(parameters);
    const Model model = make_model(shape, layers);
    EXPECT_EQ(static_cast<int64_t>(model.blocks.size()), shape.layers);
    EXPECT_EQ(parameters.at("embedding.weight").spec.shape, (std::vector<int64_t>{shape.vocabulary, shape.hidden}));
    for (const auto& external : architecture(shape.architecture).external_names(shape))
      EXPECT_NO_THROW(parameters.at(external.ours));
    EXPECT_EQ(parameters.size(), architecture(shape.architecture).external_names(shape).size());
  }
}

TEST(Resolve, ChangesWhatTheConfigNames) {
  const ModelShape s = resolve({.name = "gpt2-tiny", .hidden = 64, .layers = 2, .dropout = 0.1}, 300);
  EXPECT_EQ(s.hidden, 64);
  EXPECT_EQ(s.ffn, 256);
  EXPECT_EQ(s.head_dim, 16);
  EXPECT_EQ(s.layers, 2);
  EXPECT_EQ(s.vocabulary, 300);
  EXPECT_EQ(s.dropout, 0.1);
}

TEST(Resolve, RefusesWithTheNearestName) {
  EXPECT_NE(test::thrown_message([] { resolve({.name = "gpt2-smal"}); }).find("did you mean `gpt2-small`?"),
            std::string::npos);
  EXPECT_NE(test::thrown_message([] {
              resolve({.name = "gpt2-tiny", .heads = 7});
            }).find("hidden must divide by heads: got hidden 128, heads 7"),
            std::string::npos);
  EXPECT_NE(test::thrown_message([] {
              resolve({.name = "llama-tiny", .heads = 8, .kv_heads = 3});
            }).find("multiple of kv_heads"),
            std::string::npos);
}

TEST(HuggingFaceConfig, RoundTrips) {
  for (const char* name : {"gpt2-small", "llama3.1-8b", "llama2-70b", "vit-tiny-cifar", "vit-large-16"}) {
    const ModelShape shape = resolve({.name = name});
    EXPECT_EQ(shape_from_json(architecture(shape.architecture).to_json(shape)), shape) << name;
  }
}

TEST(HuggingFaceConfig, RefusesWhatItCannotCompute) {
  auto j = architecture("llama").to_json(resolve({.name = "llama-tiny"}));
  auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = j;
    changed[key] = value;
    return test::thrown_message([&] { shape_from_json(changed); });
  };
  EXPECT_NE(with("model_type", "mamba").find("model_type must be one of gpt2, llama, vit: got mamba"),
            std::string::npos);
  EXPECT_NE(with("hidden_act", "gelu").find("silu"), std::string::npos);
  EXPECT_NE(with("hidden_size", "large").find("wrong type"), std::string::npos);
  EXPECT_NE(with("num_hidden_layers", -3).find("layers must be positive"), std::string::npos);
  EXPECT_NE(with("num_attention_heads", 0).find("multiple of kv_heads"), std::string::npos);
  EXPECT_NE(with("rope_scaling", {{"rope_type", "yarn"}}).find("llama3 or default"), std::string::npos);
  TemporaryFolder folder;
  const std::string brackets = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  folder.write("config.json", R"({"model_type":"llama","rope_scaling":)" + brackets + "}");
  const std::string message = test::thrown_message([&] { resolve({.from = folder.path()}); });
  EXPECT_NE(message.find("config.json: nested too deeply"), std::string::npos) << message;
}

}  // namespace
}  // namespace colossal::models::shape_test
