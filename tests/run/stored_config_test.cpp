// The config of a run whose folder has the files of its model.
#include "colossal/run/stored_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::stored_config_test {
namespace {

using ::testing::HasSubstr;

/// Writes the config.toml of the run "run", and returns its config.
Config write_run(const test::TemporaryFolder& folder, const std::string& from, const std::string& tokenizer) {
  Config config;
  config.run.folder = folder / "run";
  config.model.from = from;
  config.data.tokenizer = tokenizer;
  folder.write("run/config.toml", to_toml(config));
  return config;
}

std::string refusal(const test::TemporaryFolder& folder) {
  return test::thrown_message([&] { stored_config(folder / "run"); });
}

TEST(StoredConfig, NamesTheFilesOfTheRun) {
  const test::TemporaryFolder folder;
  const std::string run = folder / "run", gone = folder / "gone", there = folder / "there";
  write_run(folder, gone, "auto");
  EXPECT_TRUE(is_run(run));
  EXPECT_FALSE(is_run(there));
  EXPECT_EQ(refusal(folder),
            concat("[run] the run ", run, " needs model.from = \"", gone,
                   "\": there is no such file or folder; put it back, or correct model.from in ", run, "/config.toml"));
  folder.write("run/config.json", "{}");
  EXPECT_EQ(stored_config(run).model.from, run);
  EXPECT_EQ(stored_config(run).tokenizer(), gone) << "whoever opens it says that it is gone";
  folder.write("run/tokenizer.json", "{}");
  EXPECT_EQ(stored_config(run).tokenizer(), run);
  EXPECT_EQ(stored_config(run).data.tokenizer, run);
}

TEST(StoredConfig, KeepsPresetsAndBytes) {
  const test::TemporaryFolder folder;
  const std::string run = folder / "run";
  for (const char* name : {"config.json", "tokenizer.json"}) folder.write(std::string("run/") + name, "{}");
  write_run(folder, "", "auto");
  EXPECT_EQ(stored_config(run).model.from, "") << "the preset and its keys give the shape";
  EXPECT_EQ(stored_config(run).data.tokenizer, "bytes");
  write_run(folder, "", "bytes");
  EXPECT_EQ(stored_config(run).data.tokenizer, "bytes");
}

TEST(StoredConfig, FindsATokenizerThatIsAFile) {
  const test::TemporaryFolder folder;
  const std::string run = folder / "run";
  write_run(folder, "", folder / "cl100k_base.tiktoken");
  EXPECT_THAT(refusal(folder), HasSubstr("needs data.tokenizer = "));
  folder.write("cl100k_base.tiktoken", "");
  EXPECT_EQ(stored_config(run).data.tokenizer, folder / "cl100k_base.tiktoken") << "an older run has no copy";
  folder.write("run/cl100k_base.tiktoken", "");
  EXPECT_EQ(stored_config(run).data.tokenizer, run + "/cl100k_base.tiktoken");
  write_run(folder, "", folder / "words.json");
  folder.write("run/tokenizer.json", "{}");
  EXPECT_EQ(stored_config(run).data.tokenizer, run) << "a folder has it under that name";
}

TEST(StoredConfig, ReplacesOnlySourcesThatAreGone) {
  const test::TemporaryFolder folder;
  const std::string run = folder / "run", base = folder / "base";
  Config config = write_run(folder, base, "auto");
  for (const char* name : {"run/config.json", "run/tokenizer.json", "base/config.json"}) folder.write(name, "{}");
  EXPECT_EQ(with_stored_sources(config, run).model.from, base);
  std::filesystem::remove_all(base);
  EXPECT_EQ(with_stored_sources(config, run).model.from, run);
  EXPECT_EQ(with_stored_sources(config, run).tokenizer(), run);
  Config other = config;
  other.model.from = folder / "another";
  EXPECT_EQ(with_stored_sources(other, run).model.from, other.model.from) << "it did not start from there";
  other = config;
  other.data.tokenizer = folder / "another.json";
  EXPECT_EQ(with_stored_sources(other, run).data.tokenizer, other.data.tokenizer);
  EXPECT_EQ(with_stored_sources(config, folder / "new").model.from, base) << "no run";
}

TEST(StoredConfig, GivesARunsTokenizerToTheNextRun) {
  const test::TemporaryFolder folder;
  const std::string run = folder / "run";
  write_run(folder, "", "bytes");
  folder.write("run/tokenizer.json", "{}");
  Config next;
  next.model.from = run;
  EXPECT_EQ(next.tokenizer(), "bytes") << "not the file of their ids";
  write_run(folder, "", folder / "gone.json");
  EXPECT_EQ(next.tokenizer(), run);
  next.data.tokenizer = "other";
  EXPECT_EQ(next.tokenizer(), "other");
}

TEST(StoredConfig, RefusesSourcesThatTheRunReplaces) {
  const test::TemporaryFolder folder;
  const std::string run = folder / "run";
  Config config = write_run(folder, run, "auto");
  EXPECT_THAT(test::thrown_message([&] { check_sources_stay(config, false); }),
              HasSubstr("run.folder must be another folder than model.from"));
  config.model.from = folder.path();
  config.data.tokenizer = folder.write("run/tokenizer.json", "{}");
  EXPECT_NO_THROW(check_sources_stay(config, false));
  EXPECT_THAT(test::thrown_message([&] { check_sources_stay(config, true); }),
              HasSubstr("data.tokenizer must not be in the folder of the run that is overwritten"));
  config.data.tokenizer = "bytes";
  EXPECT_NO_THROW(check_sources_stay(config, true));
}

}  // namespace
}  // namespace colossal::run::stored_config_test
