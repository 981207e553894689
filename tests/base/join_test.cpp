#include "colossal/base/join.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace colossal::join_test {
namespace {

TEST(Join, SeparatesElements) {
  EXPECT_EQ(join(std::vector<std::string>{"1d", "2d", "3d"}), "1d, 2d, 3d");
  EXPECT_EQ(join(std::vector<int>{7}, " x "), "7");
  EXPECT_EQ(join(std::vector<int>{}), "");
  EXPECT_EQ(join(std::vector<std::string>{"", "a", ""}), ", a, ") << "an empty element keeps its place";
}

TEST(Join, PrintsWhatAFunctionReturns) {
  const std::map<std::string, int> axes{{"data", 2}, {"tensor", 4}};
  EXPECT_EQ(join(axes, " x ", [](const auto& axis) { return axis.first + " " + std::to_string(axis.second); }),
            "data 2 x tensor 4");
  EXPECT_EQ(join(axes, ",", &std::pair<const std::string, int>::second), "2,4");
}

TEST(Join, ListsNamesAsASentenceHasThem) {
  EXPECT_EQ(listed({}), "");
  EXPECT_EQ(listed({"a"}), "a");
  EXPECT_EQ(listed({"a", "b"}), "a and b");
  EXPECT_EQ(listed({"a", "b", "c"}), "a, b and c");
}

}  // namespace
}  // namespace colossal::join_test
