#include "colossal/models/folder_config.h"

#include <gmock/gmock.h>

#include "support/thrown_message.h"

namespace colossal::models::folder_config_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(FolderConfig, ReadsPresentAndMissingKeys) {
  const FolderConfig c({{"a", 3}, {"b", nullptr}, {"inner", {{"c", 1.5}}}}, "Strange");
  EXPECT_TRUE(c.has("a"));
  EXPECT_FALSE(c.has("b") || c.has("z"));
  EXPECT_EQ(c.at<int64_t>("a"), 3);
  EXPECT_EQ(c.value("b", 7), 7);
  EXPECT_EQ(c.value("z", "none"), "none");
  EXPECT_EQ(c.object("inner").at<double>("c"), 1.5);
  EXPECT_FALSE(c.object("z").has("c"));
  EXPECT_THROW(c.at<int64_t>("z"), json::exception);
}

TEST(FolderConfig, RefusesValuesOfWrongType) {
  const FolderConfig c({{"half", 2.5},
                        {"huge", 1e30},
                        {"most", UINT64_MAX},
                        {"truth", true},
                        {"text", "3"},
                        {"list", {1, "a"}},
                        {"whole", 64.0},
                        {"least", INT64_MIN},
                        {"in", {{"k", 0.5}}}},
                       "OPT");
  EXPECT_EQ(c.at<int64_t>("whole"), 64);
  EXPECT_EQ(c.at<int64_t>("least"), INT64_MIN);
  const auto refusal = [&](const char* key) { return test::thrown_message([&] { c.at<int64_t>(key); }); };
  EXPECT_THAT(refusal("half"), HasSubstr("half of an OPT must be an integer: got 2.5"));
  EXPECT_THAT(refusal("huge"), HasSubstr("huge of an OPT must be an integer: got 1e+30"));
  EXPECT_THAT(refusal("most"), HasSubstr("most of an OPT must be an integer: got 18446744073709551615"));
  EXPECT_THAT(refusal("truth"), HasSubstr("truth of an OPT must be an integer: got true"));
  EXPECT_THAT(refusal("text"), HasSubstr("text of an OPT must be an integer: got 3"));
  EXPECT_THAT(test::thrown_message([&] { c.object("in").value("k", int64_t{1}); }),
              HasSubstr("in.k of an OPT must be an integer: got 0.5"));
  const auto of_type = [&](const auto& otherwise, const char* key) {
    return test::thrown_message([&] { c.value(key, otherwise); });
  };
  EXPECT_THAT(of_type(1.5, "truth"), HasSubstr("truth of an OPT must be of the type"));
  EXPECT_THAT(of_type(false, "half"), HasSubstr("half of an OPT must be of the type"));
  EXPECT_THAT(of_type(std::string(), "half"), HasSubstr("half of an OPT must be of the type"));
  EXPECT_THAT(of_type(std::vector<double>(), "list"), HasSubstr("list of an OPT must be of the type"));
}

TEST(FolderConfig, RefusesUnsupportedValuesByKey) {
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

/// Visits a row of each kind.
struct Rows {
  int64_t size = 0, features = 3, window = 0;
  std::string kind = "plain";
  bool scaled = true;

  void visit(FolderKeys& k) {
    k.required("size", size, "n_size");
    k.optional("features", features, 4 * size);
    k.or_null("window", window, 7);
    k.choice("kind", kind, {"plain", "gated"}, "gated");
    k.omitted("scaled", scaled, true);
    k.fixed("bias", false);
    k.only("is_decoder", false);
    k.written("dropout", 0.0);
  }
  bool operator==(const Rows&) const = default;
};

Rows read_rows(const json& config) {
  const FolderConfig folder(config, "Strange");
  FolderKeys k(folder);
  EXPECT_TRUE(k.reads() && !k.writes());
  EXPECT_EQ(k.family(), "Strange");
  Rows rows;
  rows.visit(k);
  return rows;
}

json written_rows(Rows rows) {
  json config;
  FolderKeys k(config);
  EXPECT_TRUE(k.writes() && !k.reads());
  rows.visit(k);
  return config;
}

TEST(FolderKeys, ReadRows) {
  const Rows usual{.size = 2, .features = 8, .window = 7, .kind = "gated"};
  EXPECT_EQ(read_rows({{"size", 2}}), usual);
  EXPECT_EQ(read_rows({{"size", 5}, {"n_size", 2}, {"features", nullptr}, {"dropout", 1}}), usual);
  EXPECT_EQ(read_rows({{"n_size", 2}, {"features", 3}, {"window", nullptr}, {"kind", "plain"}, {"scaled", false}}),
            (Rows{.size = 2, .scaled = false}));
  EXPECT_THROW(read_rows(json::object()), json::exception);
  const auto refusal = [](const char* key, const json& value) {
    return test::thrown_message([&] { read_rows({{"size", 2}, {key, value}}); });
  };
  EXPECT_THAT(refusal("features", 1.5), HasSubstr("features of a Strange must be an integer: got 1.5"));
  EXPECT_THAT(refusal("kind", "odd"), HasSubstr("kind of a Strange must be one of plain, gated: got odd"));
  EXPECT_THAT(refusal("bias", true), HasSubstr("bias of a Strange must be false: got true"));
  EXPECT_THAT(refusal("is_decoder", true), HasSubstr("is_decoder of a Strange must be false: got true"));
}

TEST(FolderKeys, WriteRows) {
  const json written{{"size", 2},       {"features", 3}, {"window", nullptr},
                     {"kind", "plain"}, {"bias", false}, {"dropout", 0.0}};
  EXPECT_EQ(written_rows({.size = 2}), written);
  const Rows other{.size = 2, .window = 5, .scaled = false};
  EXPECT_EQ(written_rows(other)["window"], 5);
  EXPECT_EQ(written_rows(other)["scaled"], false);
  EXPECT_EQ(read_rows(written_rows(other)), other);
}

TEST(FolderConfig, RefusesFeaturesThatNoFamilySupports) {
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

TEST(FolderConfig, WritesNullForTokensOutsideVocabulary) {
  json small{{"eos_token_id", 7}}, large = json::object();
  write_tokens(small, 50256, 50256);
  write_tokens(large, 50257, 50256);
  EXPECT_EQ(small, (json{{"pad_token_id", nullptr}, {"bos_token_id", nullptr}, {"eos_token_id", nullptr}}));
  EXPECT_EQ(large, json::object());
}

}  // namespace
}  // namespace colossal::models::folder_config_test
