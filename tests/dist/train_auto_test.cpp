// `colossal train` with [parallel] auto: it learns what one process learns, and resumes bitwise.
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/file.h"
#include "dist/train_program.h"
#include "support/paths.h"

namespace colossal::test::train_auto_test {
namespace {

const Words kAuto{"--parallel.auto=true", "--parallel.ranks=2"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(TrainProgram, ChoosesALayoutAndLearnsTheSame) {
  const Finished serial = run(train());
  ASSERT_EQ(serial.status, 0) << serial.output;
  const auto want = losses();
  const Finished chosen = run(train(with(kAuto, {"--overwrite"})));
  ASSERT_EQ(chosen.status, 0) << chosen.output;
  EXPECT_NE(chosen.output.find("chosen layout: "), std::string::npos) << chosen.output;
  EXPECT_NE(chosen.output.find("[parallel]\ndata = "), std::string::npos) << chosen.output;
  EXPECT_NE(chosen.output.find("device memory"), std::string::npos) << chosen.output;  // predicted and measured
  expect_same_curve(losses(), want);
  const std::string config = read_file(base + "/run/config.toml", 1 << 20);
  EXPECT_NE(config.find("auto = false"), std::string::npos) << config;
  EXPECT_NE(read_file(base + "/run/prediction.json", 1 << 20).find("\"step_seconds\""), std::string::npos);
  EXPECT_NE(read_file(base + "/run/report.html", 1 << 24).find("Predicted and measured"), std::string::npos);
}

TEST_F(TrainProgram, ResumesAChosenLayoutBitwise) {
  ASSERT_EQ(run(train(kAuto)).status, 0);
  const auto want = losses();
  const auto chosen = read_file(base + "/run/config.toml", 1 << 20);
  // The steps after the checkpoint of step 8 are trained again.
  const Finished resumed = run(train(with(kAuto, {"--resume-from=8"})));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("kept from "), std::string::npos) << resumed.output;
  EXPECT_EQ(losses(), want);
  EXPECT_EQ(read_file(base + "/run/config.toml", 1 << 20), chosen);
}

TEST_F(TrainProgram, ChoosesForTheRanksOfALauncher) {
  const Finished serial = run(train());
  ASSERT_EQ(serial.status, 0) << serial.output;
  const auto want = losses();
  Words words{program_path(), "run", "--ranks", "2"};
  for (const std::string& word : train({"--parallel.auto=true", "--overwrite"}))
    if (word != program_path()) words.push_back(word);
  const Finished chosen = run(words);
  ASSERT_EQ(chosen.status, 0) << chosen.output;
  expect_same_curve(losses(), want);
}

TEST_F(TrainProgram, RefusesAutoThatItCannotFollow) {
  const Finished beside = run(train({"--parallel.auto=true", "--parallel.tensor=2"}));
  EXPECT_EQ(beside.status, 1);
  EXPECT_NE(beside.output.find("parallel.tensor.size = 2; remove this key"), std::string::npos) << beside.output;
  const Finished unknown = run(train({"--parallel.auto=true"}));
  EXPECT_EQ(unknown.status, 1);
  EXPECT_NE(unknown.output.find("set parallel.ranks"), std::string::npos) << unknown.output;
  const Finished other = run(train({"--parallel.ranks=4", "--parallel.data=2"}));
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.output.find("got ranks = 4, but the axes make 2"), std::string::npos) << other.output;
}

}  // namespace
}  // namespace colossal::test::train_auto_test
