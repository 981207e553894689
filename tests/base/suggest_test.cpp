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

TEST(Suggest, SuggestsKeysThatANameAbbreviates) {
  const std::vector<std::string> keys{
      "optimizer", "optimizer.name", "optimizer.learning_rate", "optimizer.warmup_steps", "optimizer.weight_decay",
      "training",  "training.steps", "training.batch_size",     "data.sequence"};
  EXPECT_EQ(did_you_mean_key("optimizer.lr", keys), ", did you mean `optimizer.learning_rate`?");
  EXPECT_EQ(did_you_mean_key("optimizer.wd", keys), ", did you mean `optimizer.weight_decay`?");
  EXPECT_EQ(did_you_mean_key("training.bs", keys), ", did you mean `training.batch_size`?");
  EXPECT_EQ(did_you_mean_key("optimizer.warmup", keys), ", did you mean `optimizer.warmup_steps`?");
  EXPECT_EQ(did_you_mean_key("training.stpes", keys), ", did you mean `training.steps`?");
  EXPECT_EQ(did_you_mean_key("optimiser", keys), ", did you mean `optimizer`?");
  EXPECT_EQ(did_you_mean_key("optimizer.q", keys), "");
}

}  // namespace
}  // namespace colossal::suggest_test
