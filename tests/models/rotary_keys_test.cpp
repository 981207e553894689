#include "colossal/models/rotary_keys.h"

#include <gmock/gmock.h>

#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/registry.h"
#include "support/thrown_message.h"

namespace colossal::models::rotary_keys_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

RotaryKeys read(json config, const RotaryReading& reading = {}) {
  config["max_position_embeddings"] = 64;
  const FolderConfig folder(config, "Strange");
  FolderKeys k(folder);
  RotaryKeys keys;
  rotary_keys(k, keys, reading);
  return keys;
}

TEST(RotaryKeys, ReadsFormsOfTransformers4And5) {
  const RotaryKeys based{.theta = 500};
  EXPECT_EQ(read({}), RotaryKeys());
  EXPECT_EQ(read({{"rope_theta", 500}}), based);
  EXPECT_EQ(read({{"rope_theta", 500}, {"rope_scaling", nullptr}}), based);
  EXPECT_EQ(read({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500}}}}), based);
  const RotaryKeys linear{.theta = 500, .type = "linear", .scaling = {.factor = 4}};
  EXPECT_EQ(read({{"rope_theta", 500}, {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}), linear);
  EXPECT_EQ(read({{"rope_parameters", {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 500}}}}), linear);
  const json added{{"rope_theta", 500},
                   {"rope_scaling", {{"type", "linear"}, {"factor", 4}}},
                   {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7}}}};
  EXPECT_EQ(read(added), linear) << "what a person added to a folder counts, as in transformers";
  EXPECT_EQ(
      read({{"rope_scaling", json::object()}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500}}}}),
      based);
}

TEST(RotaryKeys, ReadsParametersAndDefaultsOfEachType) {
  EXPECT_EQ(read({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}),
            (RotaryKeys{.type = "dynamic", .scaling = {.factor = 2, .original_positions = 64}}));
  const json yarn{{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 8}, {"beta_slow", 0}, {"truncate", false}};
  EXPECT_EQ(read({{"rope_scaling", yarn}}),
            (RotaryKeys{.type = "yarn",
                        .scaling = {.factor = 2, .original_positions = 64, .beta_fast = 8, .truncate = false}}));
  // If the factor is missing, it follows from the positions. A value outside of the scaling object takes precedence.
  const json longrope{{"rope_type", "longrope"},
                      {"original_max_position_embeddings", 8},
                      {"short_factor", {1.0, 2.0}},
                      {"long_factor", {3.0, 4.0}}};
  RotaryKeys wanted{.type = "longrope",
                    .scaling = {.factor = 8, .original_positions = 8, .short_factor = {1, 2}, .long_factor = {3, 4}}};
  EXPECT_EQ(read({{"rope_scaling", longrope}}), wanted);
  wanted.scaling.original_positions = 16, wanted.scaling.factor = 4;
  EXPECT_EQ(read({{"rope_scaling", longrope}, {"original_max_position_embeddings", 16}}), wanted);
  EXPECT_EQ(read({{"rope_scaling", longrope}}, {.original = 16}), wanted);
  json renamed = longrope;
  renamed["rope_type"] = "su";
  EXPECT_EQ(read({{"rope_scaling", renamed}}, {.renamed = {{"su", "longrope"}}, .original = 16}), wanted);
}

TEST(RotaryKeys, UsesYarnMscalesOnlyTogether) {
  json yarn{{"rope_type", "yarn"}, {"factor", 2}, {"mscale", 0.7}};
  EXPECT_EQ(read({{"rope_scaling", yarn}}).scaling.mscale, 0);
  yarn["mscale_all_dim"] = 0.5;
  EXPECT_EQ(read({{"rope_scaling", yarn}}).scaling.mscale, 0.7);
  yarn["attention_factor"] = 1.5;
  EXPECT_EQ(read({{"rope_scaling", yarn}}).scaling.mscale_all_dim, 0);
  const auto refusal = [](const std::vector<std::string>& keys) {
    std::vector<std::string> all{"rope_type=yarn", "rope_factor=2", "rope_original_positions=8"};
    all.insert(all.end(), keys.begin(), keys.end());
    return test::thrown_message([&] { built_in().resolve({.name = "llama-tiny", .own = own_keys(all)}); });
  };
  EXPECT_EQ(refusal({"rope_mscale=2", "rope_mscale_all_dim=3"}), "");
  EXPECT_THAT(refusal({"rope_mscale=2"}), HasSubstr("must be set together: got 2 and 0"));
  EXPECT_THAT(refusal({"rope_mscale=2", "rope_mscale_all_dim=3", "rope_attention_factor=2"}),
              HasSubstr("set either it or both"));
}

TEST(RotaryKeys, RoundTripsThroughConfigJson) {
  for (RotaryKeys keys : std::vector<RotaryKeys>{
           {.theta = 77},
           {.type = "linear", .scaling = {.factor = 3}},
           {.type = "dynamic", .scaling = {.factor = 3, .original_positions = 64}},
           {.type = "llama3", .scaling = {.factor = 8, .original_positions = 32, .high_freq_factor = 5}},
           {.type = "yarn", .scaling = {.factor = 3, .original_positions = 32, .attention_factor = 1.5}},
           {.type = "yarn", .scaling = {.factor = 3, .original_positions = 32, .mscale = 2, .mscale_all_dim = 3}},
           {.type = "longrope",
            .scaling = {.factor = 2, .original_positions = 32, .short_factor = {1, 2}, .long_factor = {3, 4}}}}) {
    json config;
    FolderKeys k(config);
    rotary_keys(k, keys);
    EXPECT_EQ(read(config), keys) << config;
  }
}

TEST(RotaryKeys, RefusesUnsupportedKeysByName) {
  const auto refusal = [](const json& config) { return test::thrown_message([&] { read(config, {.whole = true}); }); };
  EXPECT_THAT(refusal({{"rope_scaling", {{"rope_type", "proportional"}}}}),
              HasSubstr("rope_type must be one of default, linear, dynamic, yarn, llama3, longrope: got proportional"));
  EXPECT_THAT(
      refusal({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}}),
      HasSubstr("rope_parameters of a Strange must be the same for all layers: got separate keys for full_attention"));
  EXPECT_THAT(refusal({{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor of a Strange must be 1"));
  EXPECT_THAT(refusal({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
              HasSubstr("rope_parameters.partial_rotary_factor of a Strange must be 1: got 0.5"));
  EXPECT_EQ(refusal({{"partial_rotary_factor", 1.0}}), "");
}

TEST(RotaryKeys, RefusesKeysOfAnotherType) {
  const auto refusal = [](const std::vector<std::string>& keys) {
    return test::thrown_message([&] { built_in().resolve({.name = "llama-tiny", .own = own_keys(keys)}); });
  };
  EXPECT_EQ(refusal({"rope_type=linear", "rope_factor=2"}), "");
  EXPECT_THAT(refusal({"rope_factor=2"}), HasSubstr("rope_type default does not use all rope_ keys that are set"));
  EXPECT_THAT(refusal({"rope_type=linear", "rope_beta_fast=2"}), HasSubstr("rope_type linear does not use all"));
  EXPECT_THAT(refusal({"rope_type=yarn", "rope_factor=2"}), HasSubstr("rope_type yarn needs rope_original_positions"));
  EXPECT_THAT(refusal({"rope_type=longrope", "rope_factor=2", "rope_original_positions=8", "rope_short_factors=[1.0]"}),
              HasSubstr("must have one value for each pair of the 16 rotated features: got 1"));
}

TEST(RotaryKeys, SetsPositionsForTypeDynamic) {
  const ModelShape shape = built_in().resolve(
      {.name = "llama-tiny", .own = own_keys({"rope_type=dynamic", "rope_factor=2", "rope_original_positions=100"})});
  EXPECT_EQ(shape.positions, 200);
  const auto refusal = [](int64_t positions, const char* factor) {
    return test::thrown_message([&] {
      built_in().resolve({.name = "llama-tiny",
                          .positions = positions,
                          .own = own_keys({"rope_type=dynamic", factor, "rope_original_positions=100"})});
    });
  };
  EXPECT_EQ(refusal(200, "rope_factor=2"), "");
  EXPECT_THAT(refusal(300, "rope_factor=2"), HasSubstr("got positions 300, which must be 200; remove it"));
  EXPECT_THAT(refusal(0, "rope_factor=0.5"), HasSubstr("needs a rope_factor of at least 1"));
  const json written = shape.architecture->hugging_face.to_json(shape);
  EXPECT_EQ(written["max_position_embeddings"], 100);
  EXPECT_EQ(built_in().shape_of(written), shape);
}

}  // namespace
}  // namespace colossal::models::rotary_keys_test
