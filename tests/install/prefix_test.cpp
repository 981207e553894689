// Contents of an installation.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "colossal/base/file.h"
#include "colossal/data/texts/files.h"
#include "colossal/data/texts/text_archive.h"
#include "support/paths.h"
#include "support/process.h"

namespace colossal::test::prefix_test {
namespace {

namespace fs = std::filesystem;

Finished command(const std::vector<std::string>& words) {
  return run_process({.command = words, .limit = std::chrono::seconds(60)});
}

/// Installs this build in a folder that is removed after the test, because its archives have debug information.
class Installed : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/installed-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(base);
    const Finished installed =
        command({COLOSSAL_CMAKE, "--install", fs::path(program_path()).parent_path(), "--prefix", prefix()});
    ASSERT_EQ(installed.status, 0) << installed.output;
  }
  void TearDown() override { fs::remove_all(base); }
  std::string prefix() const { return base + "/prefix"; }
  std::string text() const { return prefix() + "/share/colossal/builtin_text.gz"; }

  std::string base;
};

TEST_F(Installed, RunsItsPrograms) {
  const Finished version = command({prefix() + "/bin/colossal", "--version"});
  EXPECT_EQ(version.output.rfind("colossal ", 0), 0u) << version.output;
  const Finished info = command({prefix() + "/bin/colossal", "info", "--no-measure"});  // runs the program in libexec
  EXPECT_EQ(info.status, 0) << info.output;
}

TEST_F(Installed, HoldsTheBuiltinText) {
  const std::vector<data::ArchivedText> installed = data::read_text_archive(text());
  const std::string again = base + "/again.gz";
  data::write_text_archive(source_dir(), again, data::project_text());
  const std::vector<data::ArchivedText> sources = data::read_text_archive(again);
  ASSERT_EQ(installed.size(), sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(installed[i].name, sources[i].name);
    EXPECT_TRUE(installed[i].text == sources[i].text) << sources[i].name;
  }
}

// Another text in place of the installed one: the sources are still there, and a program that read them would pass
// unnoticed.
TEST_F(Installed, TrainsOnTheBuiltinTextWithoutTheSources) {
  fs::create_directories(base + "/texts/sub");
  std::ofstream(base + "/texts/sub/only.md") << std::string(20'000, 'x');
  data::write_text_archive(base + "/texts", text());
  const std::string run = base + "/run";
  const Finished trained = command({prefix() + "/bin/colossal", "train", source_dir() + "/examples/quickstart.toml",
                                    "--training.steps=1", "--training.sample_tokens=0", "--optimizer.warmup_steps=0",
                                    "--parallel.data=1", "--training.batch_size=1", "--run.folder=" + run});
  EXPECT_EQ(trained.status, 0) << trained.output;
  EXPECT_EQ(data::text_files(run + "/builtin_text", {}), std::vector<std::string>{run + "/builtin_text/sub/only.md"});
}

TEST_F(Installed, HoldsOnlyPublicHeaders) {
  std::set<std::string> headers;
  for (const auto& entry : fs::recursive_directory_iterator(prefix() + "/include"))
    if (entry.is_regular_file()) headers.insert(fs::relative(entry.path(), prefix() + "/include").string());
  for (const char* header : {"colossal.h", "colossal/nn/layers.h", "colossal/parallel/tensor/config.h"})
    EXPECT_TRUE(headers.count(header)) << header;
  for (const char* header : {"colossal/memory/chunk_store.h", "colossal/report/plot.h", "colossal/ops/simd.h"})
    EXPECT_FALSE(headers.count(header)) << header;
}

TEST_F(Installed, HoldsNoPythonPackage) {
  for (const char* name : {"colossal", "colossal_command.py"}) EXPECT_FALSE(fs::exists(prefix() + "/" + name)) << name;
}

}  // namespace
}  // namespace colossal::test::prefix_test
