// A program that trains a module of its own, built against the installed library.
#include <gtest/gtest.h>

#include "install/installed.h"

namespace colossal::test::own_module_test {
namespace {

/// The numbers behind "  loss " in `output`.
std::vector<double> losses_in(const std::string& output) {
  const std::string mark = "  loss ";
  std::vector<double> losses;
  for (size_t at = output.find(mark); at != std::string::npos; at = output.find(mark, at + 1))
    losses.push_back(std::stod(output.substr(at + mark.size())));
  return losses;
}

TEST_F(Installed, AModuleOfOnesOwnIsTrainedAndResumed) {
  const std::string program = built("own_module");
  ASSERT_NE(program, "");
  const auto own_module = [&](const Words& flags) {
    return run(program, {source("own_module") + "/own_module.toml", "--run.folder=" + base + "/run"}, flags);
  };
  const Finished begun = own_module({"--training.steps=20"});
  ASSERT_EQ(begun.status, 0) << begun.output;
  ASSERT_EQ(losses_in(begun.output).size(), 2u) << begun.output;  // of steps 1 and 20
  const double first = losses_in(begun.output).front();
  const auto expect_learnt_after = [&](const std::string& step, const Finished& run) {
    ASSERT_EQ(run.status, 0) << run.output;
    EXPECT_NE(run.output.find("goes on after step " + step + "\n"), std::string::npos) << run.output;
    ASSERT_FALSE(losses_in(run.output).empty()) << run.output;
    EXPECT_LT(losses_in(run.output).back(), first / 2) << run.output;
  };
  expect_learnt_after("20", own_module({"--training.steps=140"}));
  expect_learnt_after("140", own_module({"--training.steps=160", "--parallel.data=1", "--parallel.zero=0"}));
}

}  // namespace
}  // namespace colossal::test::own_module_test
