// Keys of [data] that only some objectives have: reading, refusals, the saved config, resuming and help.
#include "colossal/run/data_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/run/config_changes.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/own_tables.h"
#include "colossal/run/program.h"
#include "support/thrown_message.h"

namespace colossal::run::data_keys_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct ClipKeys {
  int64_t size = 64, frames = 16;
  void fields(Fields& f) {
    f.integer("scale", size, "pixels", "side of a frame", 1);
    f.previously("pictures").integer("lengths", frames, "frames", "frames of a clip", 1);
  }
  bool operator==(const ClipKeys&) const = default;
};

struct FoldKeys {
  std::string size = "all";
  void fields(Fields& f) { f.choice("scale", size, {"all", "small"}, "proteins that are read"); }
  bool operator==(const FoldKeys&) const = default;
};

/// Returns the row of an objective like next-token, which a table of its name selects.
ObjectiveRow row_of(const std::string& name, OwnKeys data) {
  return {.name = name,
          .tables = {{name, OwnKeys()}},
          .data = std::move(data),
          .make = [](const Config& config, const OwnTables&, const models::ModelShape& shape) {
            return choose_objective(Config{.model = config.model}, built_in_objectives(), shape)
                .row.make(config, OwnTables(), shape);
          }};
}

Program with_two_more() {
  Program program = built_in();
  program.objectives.add(row_of("clips", ClipKeys{})).add(row_of("folds", FoldKeys{}));
  return program;
}

Config config_of(const std::string& toml, const std::vector<std::string>& flags = {}) {
  ConfigDocument document = ConfigDocument::parse(toml, "x.toml");
  for (const std::string& flag : flags) document.set(flag);
  Config config;
  document.read(config);
  return config;
}

ChosenObjective chosen(const Config& config, std::vector<std::string>* notices = nullptr) {
  const Program program = with_two_more();
  return choose_objective(config, program.objectives, program.models.resolve(config.model), {}, notices);
}

std::string refusal(const Config& config) {
  return test::thrown_message([&] { chosen(config); });
}

TEST(DataKeys, BelongToTheObjective) {
  const ChosenObjective clips = chosen(config_of("[clips]\n[data]\nscale = 32\n", {"--data.lengths=8"}));
  EXPECT_EQ(clips.row.values().data<ClipKeys>(), (ClipKeys{32, 8}));
  EXPECT_EQ(chosen(config_of("[folds]\n[data]\nscale = \"small\"\n")).row.values().data<FoldKeys>().size, "small")
      << "another objective may have a key of the same name";
  EXPECT_EQ(chosen(config_of("[clips]\n")).row.values().data<ClipKeys>(), ClipKeys{});
  EXPECT_EQ(chosen(config_of("[data]\nweights = [1, 2]\nsources = [\"a=b\", \"c=d\"]\n"))
                .row.values()
                .data<StreamKeys>()
                .weights,
            (std::vector<double>{1, 2}));
}

TEST(DataKeys, RefuseOtherObjectivesByName) {
  EXPECT_EQ(refusal(config_of("[data]\nmasked = 0.3\n")),
            "[config] x.toml:2: `data.masked` belongs to the objective masked-token, and this run has next-token: "
            "got 0.3; leave it out");
  EXPECT_EQ(refusal(config_of("", {"--model.name=t5-tiny", "--data.shuffle_bytes=0"})),
            "[config] --data.shuffle_bytes: `data.shuffle_bytes` belongs to the objectives next-token, masked-token "
            "and alignment, and "
            "this run has target: got \"0B\"; leave it out");
  EXPECT_THAT(refusal(config_of("[folds]\n[data]\nlengths = 4\n")), HasSubstr("belongs to the objective clips"));
  EXPECT_THAT(refusal(config_of("[clips]\n[data]\nscale = \"small\"\n")), HasSubstr("`data.scale` must be an integer"));
  EXPECT_THAT(refusal(config_of("[clips]\n[data]\nlengths = 0\n")), HasSubstr("`data.lengths` must be at least 1"));
}

// Run folders of earlier versions have every key of every objective.
TEST(DataKeys, OfOtherObjectivesMayHaveTheirDefaults) {
  std::string toml = "[data]\n";
  for (const KeyHelp& key : describe_data_keys(built_in_data_keys()))
    toml += concat(key.key.substr(5), " = ", key.default_value, "\n");
  for (const char* preset : {"gpt2-tiny", "bert-tiny", "t5-tiny", "vit-tiny-cifar"})
    EXPECT_EQ(refusal(config_of(toml, {concat("--model.name=", preset)})), "") << preset;
}

TEST(DataKeys, SuggestTheNearest) {
  EXPECT_THAT(refusal(config_of("[data]\nsequnce = 3\n")),
              HasSubstr("x.toml:2: unknown key `data.sequnce`, did you mean `data.sequence`?"));
  EXPECT_THAT(refusal(config_of("[data]\nlngths = 3\n")), HasSubstr("did you mean `data.lengths`?"));
  const Config config = config_of("", {"--data.maskd=0.2"});
  EXPECT_THAT(test::thrown_message([&] { refuse_other_keys(config, {}, built_in_data_keys()); }),
              HasSubstr("--data.maskd: unknown key `data.maskd`, did you mean `data.masked`?"));
}

TEST(DataKeys, KeepTheirValuesInASavedRun) {
  Config config = config_of("[clips]\n[data]\nscale = 32\n");
  chosen(config).write_keys(config);
  const std::string kept = to_toml(config);
  EXPECT_THAT(kept, HasSubstr("\nlengths = 16\nscale = 32\n"));
  EXPECT_THAT(kept, Not(HasSubstr("masked")));
  const Config again = config_of(kept);
  EXPECT_EQ(to_toml(again), kept);
  EXPECT_EQ(chosen(again).row.values().data<ClipKeys>(), (ClipKeys{32, 16}));
}

TEST(DataKeys, ReadPreviousNames) {
  std::vector<std::string> notices;
  const ChosenObjective clips = chosen(config_of("[clips]\n[data]\npictures = 4\n"), &notices);
  EXPECT_EQ(clips.row.values().data<ClipKeys>().frames, 4);
  EXPECT_THAT(notices, ElementsAre("data.pictures is now data.lengths"));
  notices.clear();
  const ChosenObjective images =
      chosen(config_of("", {"--model.name=vit-tiny-cifar", "--data.least_area=0.25"}), &notices);
  EXPECT_EQ(images.row.values().data<ClassKeys>().min_crop_area, 0.25);
  EXPECT_THAT(notices, ElementsAre("data.least_area is now data.min_crop_area"));
}

TEST(DataKeys, CompareOnResume) {
  const Program program = with_two_more();
  const auto changes = [&](const std::string& saved, const std::string& now) {
    Config config = config_of(now);
    chosen(config).write_keys(config);
    const models::ModelShape shape = program.models.resolve(config.model, 257);
    return listed(changes_since({{"config", saved}}, config, shape, program));
  };
  EXPECT_EQ(changes("[data]\nmasked = 0.15\naugment = true\nweights = []\n", ""), "") << "an earlier version saved all";
  EXPECT_EQ(changes("[clips]\n[data]\npictures = 4\n", "[clips]\n[data]\nlengths = 4\n"), "");
  EXPECT_EQ(changes("[clips]\n[data]\nlengths = 4\n", "[clips]\n[data]\nlengths = 8\n"), "data.lengths = 4 -> 8");
  EXPECT_EQ(changes("[data]\nshuffle_bytes = 7\n", ""), "data.shuffle_bytes = \"7B\" -> \"64MiB\"");
}

TEST(DataKeys, MustDifferFromThoseOfEveryRun) {
  struct Keys {
    int64_t sequence = 3;
    void fields(Fields& f) { f.integer("sequence", sequence, "", ""); }
    bool operator==(const Keys&) const = default;
  };
  Objectives objectives = built_in_objectives();
  EXPECT_THAT(test::thrown_message([&] { objectives.add(row_of("own", Keys{})); }),
              HasSubstr("the keys of [data] of an objective must be new: every run has sequence; choose another key "
                        "for own"));
}

TEST(DataKeys, ListByObjective) {
  const std::vector<KeyHelp> keys = describe_data_keys(data_keys_of(with_two_more().objectives));
  std::vector<std::string> of_clips, of_two;
  for (const KeyHelp& key : keys) {
    if (key.section_help == "keys of the objective clips") of_clips.push_back(key.key);
    if (key.section_help == "keys of the objectives next-token, masked-token and alignment") of_two.push_back(key.key);
  }
  EXPECT_THAT(of_clips, ElementsAre("data.scale", "data.lengths"));
  EXPECT_THAT(of_two, ElementsAre("data.sources", "data.weights", "data.shuffle_bytes"));
  EXPECT_THAT(format_help(keys), HasSubstr("\n[data]\n  keys of the objective masked-token\n  masked = 0.15\n"));
  EXPECT_THAT(describe_data_keys({}), IsEmpty());
}

}  // namespace
}  // namespace colossal::run::data_keys_test
