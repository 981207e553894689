#include "colossal/models/folder_config.h"

#include <gmock/gmock.h>

#include "support/ranks_values.h"

namespace colossal::models::folder_config_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(FolderConfig, ReadsWhatIsThereAndWhatIsNot) {
  const FolderConfig c({{"a", 3}, {"b", nullptr}, {"inner", {{"c", 1.5}}}}, "Strange");
  EXPECT_TRUE(c.has("a"));
  EXPECT_FALSE(c.has("b") || c.has("z"));
  EXPECT_EQ(c.at<int64_t>("a"), 3);
  EXPECT_EQ(c.value("b", 7), 7);
  EXPECT_EQ(c.value("z", "none"), "none");
  EXPECT_EQ(c.object("inner").at<double>("c"), 1.5);
  EXPECT_FALSE(c.object("z").has("c"));
  EXPECT_THROW(c.at<int64_t>("z"), json::exception);
  EXPECT_THROW(c.value("a", std::string()), json::exception);
}

TEST(FolderConfig, RefusesByName) {
  const FolderConfig c({{"drop", 0.1}, {"none", nullptr}, {"act", "relu"}, {"list", {1}}, {"in", {{"k", true}}}},
                       "Strange");
  EXPECT_EQ(test::thrown_message([&] { c.must_be("drop", 0.1); }), "");
  EXPECT_EQ(test::thrown_message([&] { c.must_be("none", 0); }), "");
  EXPECT_EQ(test::thrown_message([&] { c.must_be("absent", 0); }), "");
  EXPECT_THAT(test::thrown_message([&] { c.must_be("drop", 0); }), HasSubstr("drop of a Strange must be 0: got 0.1"));
  EXPECT_THAT(test::thrown_message([&] { c.must_be_one_of("act", {"gelu", "silu"}); }),
              HasSubstr("act of a Strange must be one of gelu, silu: got relu"));
  EXPECT_THAT(test::thrown_message([&] { c.object("in").must_be("k", false); }),
              HasSubstr("in.k of a Strange must be false: got true"));
  EXPECT_THAT(test::thrown_message([&] { c.object("list"); }),
              HasSubstr("list of a Strange must be an object: got [1]"));
}

TEST(FolderConfig, OfWhatNoFamilyComputesIsRefused) {
  const auto refusal = [](const json& config) {
    return test::thrown_message([&] { FolderConfig(config, "Strange"); });
  };
  EXPECT_THAT(refusal({{"quantization_config", {{"bits", 4}}}}),
              HasSubstr("quantization_config of a Strange must be {}: got {\"bits\":4}"));
  EXPECT_THAT(refusal({{"pruned_heads", {{"0", {1}}}}}), HasSubstr("pruned_heads of a Strange"));
  EXPECT_THAT(refusal({{"per_layer_config", {{"0", {{"head_dim", 4}}}}}}), HasSubstr("per_layer_config of a Strange"));
  EXPECT_THAT(refusal({{"add_cross_attention", true}}), HasSubstr("add_cross_attention of a Strange must be false"));
  EXPECT_EQ(refusal({{"pruned_heads", json::object()}, {"add_cross_attention", false}}), "");
}

}  // namespace
}  // namespace colossal::models::folder_config_test
