// Keys of the config that are also read by their names of the previous release.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/run/config.h"
#include "colossal/run/config_changes.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::renamed_keys_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Renamed {
  std::string section, previous, now, value;
  std::string notice() const { return section + "." + previous + " is now " + section + "." + now; }
  std::string toml(const std::string& key) const { return "[" + section + "]\n" + key + " = " + value + "\n"; }
};

const std::vector<Renamed>& renamed_keys() {
  static const std::vector<Renamed> keys{{"data", "longest_line", "max_line_bytes", "\"2MiB\""},
                                         {"data", "faults", "on_error", "\"skip\""},
                                         {"parallel", "zero_sharers", "zero_group", "2"},
                                         {"parallel", "gathered_mib", "max_gathered_mib", "64.0"},
                                         {"training", "graph", "cuda_graph", "true"}};
  return keys;
}

class RenamedKeys : public testing::Test {
 protected:
  GivenConfig read(const std::string& toml, const std::vector<std::string>& flags = {}) {
    return read_given_config(folder.write("run.toml", toml), flags);
  }
  test::TemporaryFolder folder;
};

TEST_F(RenamedKeys, NotifyWhenRead) {
  for (const Renamed& key : renamed_keys()) {
    SCOPED_TRACE(key.previous);
    const GivenConfig before = read(key.toml(key.previous)), now = read(key.toml(key.now));
    EXPECT_THAT(before.notices, ElementsAre(key.notice()));
    EXPECT_THAT(now.notices, IsEmpty());
    EXPECT_EQ(to_toml(before.config), to_toml(now.config));
    EXPECT_THAT(to_toml(before.config), HasSubstr("\n" + key.now + " = " + key.value + "\n"));
    EXPECT_NE(to_toml(before.config), to_toml(Config()));
  }
}

TEST_F(RenamedKeys, NotifyWhenReadFromFlags) {
  const GivenConfig given = read("", {"--parallel.zero_sharers=2", "--parallel.gathered_mib=64",
                                      "--data.longest_line=2MiB", "--data.faults=skip", "--training.graph=true"});
  EXPECT_EQ(given.config.parallel.zero_group, 2);
  EXPECT_EQ(given.config.parallel.max_gathered_mib, 64);
  EXPECT_EQ(given.config.data.max_line_bytes, 2 << 20);
  EXPECT_EQ(given.config.data.on_error, "skip");
  EXPECT_TRUE(given.config.training.cuda_graph);
  EXPECT_EQ(given.notices.size(), renamed_keys().size());
  for (const Renamed& key : renamed_keys()) EXPECT_THAT(given.notices, testing::Contains(key.notice()));
}

TEST_F(RenamedKeys, RefuseBothNames) {
  for (const Renamed& key : renamed_keys()) {
    const std::string before = key.section + "." + key.previous, now = key.section + "." + key.now;
    EXPECT_THAT(test::thrown_message([&] { read(key.toml(key.previous) + key.now + " = " + key.value + "\n"); }),
                HasSubstr("`" + before + "` is now `" + now + "`, and both are given: leave out `" + before + "`"));
  }
}

TEST(RenamedOwnKeys, GetTheirPresentNames) {
  models::ModelConfig config{.name = "t5-tiny", .own = models::own_keys({"farthest=64"})};
  const models::OwnSizes own = models::built_in().resolve(config).own;
  const std::vector<KeyHelp> keys = describe_config(own);
  const auto key = std::find_if(keys.begin(), keys.end(), [](const KeyHelp& k) { return k.key == "max_distance"; });
  ASSERT_NE(key, keys.end());
  EXPECT_EQ(key->default_value, "64");
  EXPECT_THAT(models::use_present_names(config, own), ElementsAre("model.farthest is now model.max_distance"));
  EXPECT_EQ(config.own.text("model.max_distance"), "64");
  EXPECT_EQ(config.own.text("model.farthest"), std::nullopt);
  EXPECT_THAT(models::use_present_names(config, own), IsEmpty());
}

TEST(RenamedOwnKeys, RefuseBothNames) {
  const models::ModelConfig config{.name = "t5-tiny", .own = models::own_keys({"farthest=64", "max_distance=64"})};
  EXPECT_THAT(test::thrown_message([&] { models::built_in().resolve(config); }),
              HasSubstr("`model.farthest` is now `model.max_distance`, and both are given"));
}

TEST_F(RenamedKeys, ChangeNoSavedConfig) {
  std::string saved, present;
  for (const Renamed& key : renamed_keys()) {
    const std::string section = "[" + key.section + "]\n";
    const bool is_open = saved.find(section) != std::string::npos;
    saved += (is_open ? "" : section) + key.previous + " = " + key.value + "\n";
    present += (is_open ? "" : section) + key.now + " = " + key.value + "\n";
  }
  const Config config = read(present + "[model]\nname = \"t5-tiny\"\nmax_distance = 64\n").config;
  const models::ModelShape shape = models::built_in().resolve(config.model);
  const auto changes_to = [&](const std::string& toml, const Config& now) {
    return listed(changes_since({{"config", toml}}, now, shape, built_in()));
  };
  EXPECT_EQ(changes_to(saved + "[model]\nname = \"t5-tiny\"\nfarthest = 64\n", config), "");
  // An unreadable text gives no changes either, so these show that it was read.
  EXPECT_EQ(changes_to(saved + "[model]\nname = \"t5-tiny\"\nfarthest = 32\n", config),
            "model.max_distance = 32 -> 64");
  const Config other = read(present + "[model]\nname = \"t5-tiny\"\nmax_distance = 64\n",
                            {"--parallel.zero_group=4", "--training.cuda_graph=false"})
                           .config;
  EXPECT_EQ(changes_to(saved + "[model]\nname = \"t5-tiny\"\nfarthest = 64\n", other),
            "parallel.zero_group = 2 -> 4, training.cuda_graph = true -> false");
}

}  // namespace
}  // namespace colossal::run::renamed_keys_test
