// How a config file and flags are combined.
#include "colossal/run/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::config_test {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

class ReadGivenConfig : public testing::Test {
 protected:
  GivenConfig read(const std::string& toml, const std::vector<std::string>& flags = {}) {
    write_file(folder / "run.toml", toml);
    return read_given_config(folder / "run.toml", flags);
  }
  test::TemporaryFolder folder;
};

TEST_F(ReadGivenConfig, ShortensWarmUpIfFlagShortensRun) {
  const auto given = read("[optimizer]\nwarmup_steps = 20\n[training]\nsteps = 300\n", {"--training.steps=10"});
  EXPECT_EQ(given.config.optimizer.warmup_steps, 1);
  EXPECT_THAT(given.notices, ElementsAre(HasSubstr("optimizer.warmup_steps = 20 is more than the 10 steps of this run: "
                                                   "the warm-up is shortened to 1")));
  given.config.validate();
}

TEST_F(ReadGivenConfig, RefusesValuesThatAreNotUtf8) {
  std::string message;
  try {
    read("", {"--data.path=caf\xe9.txt"}).config.validate();
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("values must be UTF-8: got path = \"caf\xe9.txt\" in [data]"));
}

TEST_F(ReadGivenConfig, ShortensDefaultWarmUp) {
  EXPECT_EQ(read("[training]\nsteps = 5\n").config.optimizer.warmup_steps, 0);
  EXPECT_EQ(read("", {"--training={steps=8}"}).config.optimizer.warmup_steps, 0);
  EXPECT_EQ(read_given_config("", {"--training.steps=9"}).notices.size(), 1u);
}

TEST_F(ReadGivenConfig, KeepsWarmUpThatFits) {
  const auto given = read("[optimizer]\nwarmup_steps = 20\n[training]\nsteps = 300\n", {"--training.steps=20"});
  EXPECT_EQ(given.config.optimizer.warmup_steps, 20);
  EXPECT_THAT(given.notices, IsEmpty());
}

TEST_F(ReadGivenConfig, RefusesRequestedWarmUpLongerThanRun) {
  for (const auto& given : {read("[optimizer]\nwarmup_steps = 20\n[training]\nsteps = 10\n"),
                            read("[training]\nsteps = 300\n", {"--training.steps=10", "--optimizer.warmup_steps=20"}),
                            read("[training]\nsteps = 10\n", {"--optimizer.warmup_steps=20"})}) {
    EXPECT_EQ(given.config.optimizer.warmup_steps, 20);
    EXPECT_THAT(given.notices, IsEmpty());
    EXPECT_THROW(given.config.validate(), std::exception);
  }
}

// New users start with the examples, so each must be accepted unchanged.
TEST_F(ReadGivenConfig, NamesTheKeyOfAValueThatStandsForItsTable) {
  const std::vector<std::pair<std::string, std::string>> rows{
      {"--precision=bf16", "precision.mode"},
      {"--parallel.sequence=ring", "parallel.sequence.mode"},
      {"--parallel.pipeline=gpipe", "parallel.pipeline.schedule"},
      {"--optimizer=lion", "optimizer.name"},
      {"--memory=lru", "memory.placement"}};
  for (const auto& [flag, key] : rows)
    EXPECT_THAT(test::thrown_message([&] { read("", {flag}); }), EndsWith("; did you mean `" + key + "`?")) << flag;
  EXPECT_THAT(test::thrown_message([&] { read("", {"--precision=bf17"}); }), EndsWith("got \"bf17\""));
}

TEST(Examples, PassValidation) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_dir() + "/examples")) {
    if (entry.path().extension() != ".toml") continue;
    SCOPED_TRACE(entry.path());
    const auto given = read_given_config(entry.path(), {});
    EXPECT_NO_THROW(given.config.validate());
    EXPECT_THAT(given.notices, IsEmpty());
    ++found;
  }
  EXPECT_GE(found, 7);
}

}  // namespace
}  // namespace colossal::run::config_test
