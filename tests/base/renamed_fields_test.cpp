// Fields with a previous name (Fields::previously) in TOML, in flags, in JSON and in printed configs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "support/thrown_message.h"

namespace colossal::renamed_fields_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Layout {
  int64_t size = 1;
  std::string mode = "1d";
  void fields(Fields& f) {
    f.previously("sharers").integer("size", size, "ranks", "number of ranks", 1, 64);
    f.choice("mode", mode, {"1d", "2d"}, "partition of matrices");
  }
};

struct Config {
  Layout parallel;
  void fields(Fields& f) { f.section("parallel", parallel, "layout of the ranks"); }
};

std::vector<std::string> read(Config& config, const std::string& toml, const std::vector<std::string>& flags = {}) {
  ConfigDocument document = ConfigDocument::parse(toml, "x.toml");
  for (const std::string& flag : flags) document.set(flag);
  return document.read(config);
}

std::string refusal(const std::string& toml, const std::vector<std::string>& flags = {}) {
  return test::thrown_message([&] {
    Config config;
    read(config, toml, flags);
  });
}

TEST(RenamedFields, NotifyWhenReadFromToml) {
  Config config;
  EXPECT_THAT(read(config, "[parallel]\nsharers = 4\n"), ElementsAre("parallel.sharers is now parallel.size"));
  EXPECT_EQ(config.parallel.size, 4);
  EXPECT_THAT(read(config, "[parallel]\nsize = 2\n"), IsEmpty());
  EXPECT_EQ(config.parallel.size, 2);
}

TEST(RenamedFields, NotifyWhenReadFromFlags) {
  Config config;
  EXPECT_THAT(read(config, "", {"--parallel.sharers=8"}), ElementsAre("parallel.sharers is now parallel.size"));
  EXPECT_EQ(config.parallel.size, 8);
  EXPECT_THAT(read(config, "[parallel]\nsharers = 4\n", {"--parallel.sharers=16"}),
              ElementsAre("parallel.sharers is now parallel.size"));
  EXPECT_EQ(config.parallel.size, 16) << "a flag overrides the file";
}

TEST(RenamedFields, RefuseBothNames) {
  EXPECT_EQ(refusal("[parallel]\nsize = 2\nsharers = 2\n"),
            "[config] x.toml:3: `parallel.sharers` is now `parallel.size`, and both are given: leave out "
            "`parallel.sharers`");
  EXPECT_THAT(refusal("[parallel]\nsharers = 2\n", {"--parallel.size=4"}),
              HasSubstr("`parallel.sharers` is now `parallel.size`, and both are given"));
}

TEST(RenamedFields, AppearInMessagesByThePresentName) {
  EXPECT_EQ(refusal("[parallel]\nsharers = 0\n"),
            "[config] x.toml:2: `parallel.size` must be between 1 and 64 (ranks): got 0");
  EXPECT_THAT(refusal("[parallel]\nsharer = 2\n"), Not(HasSubstr("parallel.sharers")));
}

TEST(RenamedFields, PrintThePresentName) {
  Config config;
  read(config, "[parallel]\nsharers = 4\n");
  EXPECT_EQ(to_toml(config), "[parallel]\nsize = 4\nmode = \"1d\"\n");
  const std::vector<KeyHelp> keys = describe_config(config);
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[0].key, "parallel.size");
  EXPECT_EQ(keys[0].previous, "sharers");
  EXPECT_EQ(keys[1].previous, "") << "a previous name belongs to one field";
  EXPECT_THAT(format_help(keys), Not(HasSubstr("sharers")));
  EXPECT_THAT(format_markdown(keys), Not(HasSubstr("sharers")));
}

TEST(RenamedFields, AcceptJson) {
  const auto json = [](Layout& layout, const char* text) {
    return read_json(ordered_json::parse(text), layout, "chat");
  };
  const auto json_refusal = [&](const char* text) {
    return test::thrown_message([&] {
      Layout layout;
      json(layout, text);
    });
  };
  Layout layout;
  EXPECT_THAT(json(layout, R"({"mode": "2d", "sharers": 4})"), ElementsAre("mode", "size"));
  EXPECT_EQ(layout.size, 4);
  EXPECT_EQ(layout.mode, "2d");
  EXPECT_EQ(json_refusal(R"({"sharers": 4, "size": 4})"),
            "[chat] sharers is now size, and both are given: leave out sharers");
  EXPECT_EQ(json_refusal(R"({"sharers": 0})"), "[chat] size must be at least 1: got 0");
}

TEST(ConfigDocument, RenamesKeys) {
  ConfigDocument document = ConfigDocument::parse("[model]\nfar = 3\n", "x.toml");
  EXPECT_TRUE(document.rename("model.far", "model.distance"));
  EXPECT_FALSE(document.rename("model.far", "model.distance"));
  EXPECT_EQ(document.text("model.distance"), "3");
  EXPECT_EQ(document.text("model.far"), std::nullopt);
}

}  // namespace
}  // namespace colossal::renamed_fields_test
