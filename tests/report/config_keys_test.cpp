#include "colossal/report/config_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace colossal::report::config_keys_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(const std::vector<ConfigKeyRow>& rows, bool ConfigKeyRow::* which) {
  std::vector<std::string> out;
  for (const ConfigKeyRow& row : rows)
    if (row.*which) out.push_back(row.key);
  return out;
}

TEST(ConfigKeys, FindsDifferences) {
  const auto rows = config_keys({"[run]\nfolder = \"a\"\n[o]\nlr = 1e-3\nn = 3\nbetas = [0.9, 1]\nown = \"x\"\n",
                                 "[run]\nfolder = \"b\"\n[o]\nlr = 0.002\nbetas = [0.9, 1]\n"},
                                "[o]\nlr = 0.001\nn = 3\nbetas = [0.9, 2]\nunused = true\n");
  EXPECT_THAT(names(rows, &ConfigKeyRow::differs_between_runs), ElementsAre("o.lr", "o.own"));
  EXPECT_THAT(names(rows, &ConfigKeyRow::differs_from_default), ElementsAre("o.betas", "o.lr", "o.own"));
  EXPECT_EQ(rows.at(0).key, "o.betas");
  EXPECT_EQ(rows.at(0).default_value, "[0.9, 2]");
  EXPECT_THAT(rows.at(0).values, ElementsAre("[0.9, 1]", "[0.9, 1]"));
}

TEST(ConfigKeys, AcceptsUnreadableConfigs) {
  const auto rows = config_keys({"[broken", "a = 1\n"}, "a = 1\n");
  EXPECT_THAT(names(rows, &ConfigKeyRow::differs_between_runs), ElementsAre());
  EXPECT_THAT(names(rows, &ConfigKeyRow::differs_from_default), ElementsAre());
  EXPECT_THAT(rows.at(0).values, ElementsAre("", "1"));
}

}  // namespace
}  // namespace colossal::report::config_keys_test
