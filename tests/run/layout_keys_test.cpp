// The keys that a search chooses: what `auto` refuses, what a search starts from, and the tables that it prints.
#include "colossal/run/layout_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "support/thrown_message.h"

namespace colossal::run::layout_keys_test {
namespace {

using ::testing::HasSubstr;

Config config_with(const std::vector<std::string>& flags) { return read_given_config("", flags).config; }

std::string refusal(const std::vector<std::string>& flags) {
  return test::thrown_message([&] { config_with(flags).validate(); });
}

TEST(LayoutKeys, ExistInTheConfig) {
  std::vector<std::string> known;
  for (const KeyHelp& key : describe_config(Config())) known.push_back(key.key);
  for (const std::string& key : layout_keys()) EXPECT_THAT(known, ::testing::Contains(key));
}

TEST(LayoutKeys, RefusesAutoBesideAKeyThatItChooses) {
  EXPECT_THAT(refusal({"--parallel.auto=true", "--parallel.tensor=2"}),
              HasSubstr("[parallel] auto chooses the layout, so no key of it can be set: got auto = true beside "
                        "parallel.tensor.size = 2; remove this key"));
  EXPECT_THAT(refusal({"--parallel.auto=true", "--memory.recompute=block", "--training.accumulate=2"}),
              HasSubstr("memory.recompute = \"block\", training.accumulate = 2; remove these keys"));
  EXPECT_EQ(refusal({"--parallel.auto=true", "--parallel.tensor=1", "--parallel.data=1", "--parallel.zero=0"}), "");
  EXPECT_EQ(refusal({"--parallel.auto=true", "--parallel.compress=fp8", "--parallel.ranks=4"}), "");
}

TEST(LayoutKeys, RefusesRanksThatDifferFromTheAxes) {
  EXPECT_THAT(refusal({"--parallel.ranks=4", "--parallel.data=2"}),
              HasSubstr("ranks must be the product of all axes: got ranks = 4, but the axes make 2"));
  EXPECT_EQ(refusal({"--parallel.ranks=4", "--parallel.data=2", "--parallel.tensor=2"}), "");
}

TEST(LayoutKeys, ResetsAllButKeptKeys) {
  const Config given = config_with({"--parallel.data=2", "--parallel.tensor={size=4,mode=\"2d\"}", "--parallel.zero=2",
                                    "--parallel.compress=fp8", "--memory.recompute=block", "--memory.host=1GiB",
                                    "--training.accumulate=2"});
  const Config fresh = without_layout(given, {"parallel.tensor", "memory.recompute"});
  EXPECT_EQ(fresh.parallel.data, 1);
  EXPECT_EQ(fresh.parallel.zero, 0);
  EXPECT_EQ(fresh.training.accumulate, 1);
  EXPECT_EQ(fresh.parallel.tensor.size, 4);
  EXPECT_EQ(fresh.parallel.tensor.mode, "2d");
  EXPECT_EQ(fresh.memory.recompute, "block");
  EXPECT_EQ(fresh.memory.host, int64_t{1} << 30);  // a budget
  EXPECT_EQ(fresh.parallel.compress, "fp8");
  EXPECT_EQ(without_layout(given, {}).parallel.tensor.mode, "1d");
}

/// The budget of recompute = "auto" is illegal beside any other value, and a search tries the others.
TEST(LayoutKeys, ResetsTheBudgetOfAutomaticRecomputation) {
  const Config given = config_with({"--memory.recompute=auto", "--memory.activations=1GiB"});
  const Config fresh = without_layout(given, {});
  EXPECT_EQ(fresh.memory.activations, 0);
  EXPECT_NO_THROW(fresh.validate());
  EXPECT_THAT(layout_table(fresh, given), HasSubstr("activations = "));
  EXPECT_EQ(without_layout(given, {"memory.recompute"}).memory.activations, int64_t{1} << 30);
}

TEST(LayoutKeys, RefusesToKeepOtherKeys) {
  std::string message;
  try {
    without_layout(Config(), {"parallel.tensr"});
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("got `parallel.tensr`, did you mean `parallel.tensor`?"));
  EXPECT_THROW(without_layout(Config(), {"optimizer.name"}), Error);
}

TEST(LayoutKeys, PrintsTablesThatGiveTheSameLayout) {
  const Config given = config_with({"--training.accumulate=4", "--memory.device=1GiB"});
  Config chosen = given;
  chosen.parallel.data = 2;
  chosen.parallel.pipeline = {.size = 2, .schedule = "gpipe", .micro_batches = 4, .layers_per_stage = {3, 1}};
  chosen.memory.device = 0;
  chosen.memory.recompute = "selective";
  chosen.training.accumulate = 1;
  const std::string table = layout_table(chosen, given);
  EXPECT_THAT(table, HasSubstr("[parallel]\ndata = 2\n"));
  EXPECT_THAT(table, HasSubstr("[training]\naccumulate = 1\n"));
  Config read = given;
  ConfigDocument::parse(table, "table").read(read);
  EXPECT_EQ(to_toml(read), to_toml(chosen));
  EXPECT_EQ(layout_changes(given, given), "");
  EXPECT_EQ(layout_changes(chosen, given), table);
}

}  // namespace
}  // namespace colossal::run::layout_keys_test
