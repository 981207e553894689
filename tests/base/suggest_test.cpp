#include "colossal/base/suggest.h"

#include <gtest/gtest.h>

namespace colossal::suggest_test {
namespace {

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("train", "trian"), 1) << "neighbours swapped are one edit";
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2);
}

TEST(Suggest, SuggestsTheNearestOnlyIfItIsNear) {
  const std::vector<std::string> commands{"train", "generate", "info"};
  EXPECT_EQ(closest("trian", commands), "train");
  EXPECT_EQ(closest("generrate", commands), "generate");
  EXPECT_EQ(closest("zzzzz", commands), "");
  EXPECT_EQ(closest("ab", {"cd"}), "") << "replacing all of a word is no resemblance";
  EXPECT_EQ(closest("x", {}), "");
  EXPECT_EQ(closest(std::string(1'000'000, 'a'), commands), "");
}

TEST(Suggest, PhrasesTheQuestion) {
  EXPECT_EQ(did_you_mean("inof", {"info"}), ", did you mean `info`?");
  EXPECT_EQ(did_you_mean("serve", {"info"}), "");
}

}  // namespace
}  // namespace colossal::suggest_test
