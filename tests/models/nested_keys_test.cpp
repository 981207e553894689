// Tables among the own keys of an architecture: their names, messages, help, and folders.
#include <gmock/gmock.h>

#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::models::nested_keys_test {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

struct Inner {
  int64_t depth = 1;
  std::vector<int64_t> rows{};
  void fields(Fields& f) {
    f.previously("deep").integer("depth", depth, "", "a depth", 0, 9);
    f.integers("rows", rows, "", "some rows", 0, 9);
  }
  bool operator==(const Inner&) const = default;
};

struct NestedKeys {
  Inner inner;
  int64_t reach = 8;
  void fields(Fields& f) {
    f.section("inner", inner, "a table");
    f.integer("reach", reach, "tokens", "number of tokens that a token sees", 1, 64);
  }
  bool operator==(const NestedKeys&) const = default;
};

/// An architecture with a table, whose folders hold no sizes.
Architecture nested() {
  const ModelShape shape{
      .vocabulary = 20, .hidden = 8, .layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 16, .positions = 32};
  return {.name = "nested",
          .own = NestedKeys{},
          .presets = {{"nested-tiny", shape}},
          .make = [](const ModelShape&, nn::Layers&) { return Model(); },
          .hugging_face = {.model_type = "nested",
                           .names = [](const ModelShape&) { return std::vector<nn::ExternalName>(); },
                           .from_json =
                               [](const nlohmann::json&) {
                                 ModelShape read = built_in().resolve({.name = "llama-tiny"});
                                 read.own = NestedKeys{.inner = {.depth = 3}};
                                 return read;
                               },
                           .to_json = [](const ModelShape&) { return nlohmann::json::object(); },
                           .own_training = {"inner.rows"}}};
}

Registry with_nested() { return built_in().add(nested()); }

std::string refusal(const std::string& name, const std::vector<std::string>& keys) {
  return test::thrown_message([&] { with_nested().resolve({.name = name, .own = own_keys(keys)}); });
}

TEST(NestedKeys, ReadFlagsAndTables) {
  const auto keys = [](const std::vector<std::string>& assignments) {
    return with_nested().resolve({.name = "nested-tiny", .own = own_keys(assignments)}).own.as<NestedKeys>();
  };
  EXPECT_EQ(keys({"inner.depth=3", "inner.rows=1,2"}), (NestedKeys{.inner = {.depth = 3, .rows = {1, 2}}}));
  EXPECT_EQ(keys({"inner={depth = 3, rows = [1]}", "reach=4"}),
            (NestedKeys{.inner = {.depth = 3, .rows = {1}}, .reach = 4}));
}

TEST(NestedKeys, HaveMessagesOfPlainKeys) {
  EXPECT_THAT(refusal("nested-tiny", {"inner.detph=3"}),
              HasSubstr("unknown key `model.inner.detph`, did you mean `model.inner.depth`?"));
  EXPECT_THAT(refusal("nested-tiny", {"iner.depth=3"}),
              HasSubstr("unknown key `model.iner.depth`, did you mean `model.inner.depth`?"));
  EXPECT_THAT(refusal("nested-tiny", {"inner=3"}),
              HasSubstr("`model.inner` must be a table ([model.inner] and keys below it): got 3"));
  EXPECT_THAT(refusal("nested-tiny", {"reach.far=3"}), HasSubstr("unknown key `model.reach.far`"));
  EXPECT_THAT(refusal("nested-tiny", {"inner.depth=10"}), HasSubstr("`model.inner.depth` must be between 0 and 9"));
  ModelShape shape = with_nested().resolve({.name = "nested-tiny"});
  shape.own = NestedKeys{.inner = {.depth = 10}};
  EXPECT_THAT(test::thrown_message([&] { shape.validate(); }),
              HasSubstr("[model] inner.depth must be between 0 and 9: got 10"));
  shape.own = NestedKeys{.reach = 0};
  EXPECT_THAT(test::thrown_message([&] { shape.validate(); }),
              HasSubstr("[model] reach must be between 1 and 64: got 0"));
}

TEST(NestedKeys, NameTheArchitectureThatHasThem) {
  const auto owner = [](const std::string& assignment) {
    const std::string message = refusal("bloom-tiny", {assignment});
    EXPECT_THAT(message, EndsWith("` is a key of models of architecture nested, and bloom-tiny is a bloom, which has "
                                  "no keys besides the common ones"));
    return message.substr(0, message.find("` is"));
  };
  EXPECT_THAT(owner("inner.depth=3"), EndsWith(": `model.inner.depth"));
  EXPECT_THAT(owner("inner.detph=3"), EndsWith(": `model.inner"));
  EXPECT_THAT(owner("inner=3"), EndsWith(": `model.inner"));
  EXPECT_THAT(owner("inner={}"), EndsWith(": `model.inner"));
  EXPECT_THAT(refusal("nested-tiny", {"patch=4"}), EndsWith("is a nested, which has the keys reach, inner"));
}

TEST(NestedKeys, DifferFromFoldersIfTheyConcernTraining) {
  test::TemporaryFolder folder;
  folder.write("config.json", R"({"model_type": "nested"})");
  const auto from = [&](const std::vector<std::string>& keys) {
    return with_nested().resolve({.from = folder.path(), .own = own_keys(keys)}).own.as<NestedKeys>();
  };
  EXPECT_EQ(from({"inner.rows=1,2", "inner.depth=3"}), (NestedKeys{.inner = {.depth = 3, .rows = {1, 2}}}));
  EXPECT_THAT(test::thrown_message([&] { from({"inner.rows=1", "inner.depth=2", "reach=4"}); }),
              EndsWith("sizes come from the folder " + folder.path() + ": remove reach, inner.depth from [model]"));
}

TEST(NestedKeys, GetTheirPresentNames) {
  ModelConfig config{.own = own_keys({"inner.deep=3"})};
  EXPECT_THAT(use_present_names(config, NestedKeys()), ElementsAre("model.inner.deep is now model.inner.depth"));
  EXPECT_EQ(config.own.text("model.inner.depth"), "3");
  EXPECT_EQ(config.own.text("model.inner.deep"), std::nullopt);
}

TEST(NestedKeys, HaveDottedNamesInHelp) {
  const std::vector<KeyHelp> keys = describe_own(NestedKeys());
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys[1].key, "inner.depth");
  EXPECT_THAT(format_help(keys), StartsWith("  reach = 8\n"));
  EXPECT_THAT(format_help(keys), HasSubstr("\n  inner.depth = 1\n"));
  EXPECT_THAT(format_markdown(keys), HasSubstr("\n| `inner.depth` | `1` | integer, 0 .. 9 | a depth |\n"));
}

TEST(NestedKeys, KeepTheirTypesInThePrintedConfig) {
  struct File {
    ModelConfig model;
    void fields(Fields& f) { f.section("model", model, ""); }
  };
  File file{{.name = "nested-tiny", .own = own_keys({"inner.rows=1,2", "reach=4"})}}, again;
  const ModelShape shape = with_nested().resolve(file.model);
  set_types(file.model, shape.own);
  const std::string printed = to_toml(file);
  EXPECT_THAT(printed, HasSubstr("\ninner.rows = [1, 2]\nreach = 4\n"));
  ConfigDocument::parse(printed, "x.toml").read(again);
  EXPECT_EQ(with_nested().resolve(again.model), shape);
}

struct TakenTable {
  Inner table;
  void fields(Fields& f) { f.section("dropout", table, "a table"); }
  bool operator==(const TakenTable&) const = default;
};

TEST(NestedKeys, RefuseTablesNamedLikeCommonKeys) {
  Architecture wrong = nested();
  wrong.own = TakenTable();
  EXPECT_THAT(test::thrown_message([&] { built_in().add(wrong); }),
              HasSubstr("must differ from the keys of all models: got dropout.depth of nested"));
}

TEST(NestedKeys, RefuseUnknownNamesOfTraining) {
  Architecture wrong = nested();
  wrong.hugging_face.own_training = {"rows"};
  EXPECT_THAT(test::thrown_message([&] { built_in().add(wrong); }),
              EndsWith("hugging_face.own_head and own_training must be names of own keys: got rows of nested; the keys "
                       "of a table have dotted names, such as experts.count"));
}

}  // namespace
}  // namespace colossal::models::nested_keys_test
