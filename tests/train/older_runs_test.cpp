// Runs of an older version resume: tests/train/older_runs has the folders of two runs, of a GPT on JSON lines and of a
// vision transformer on pictures, that the version of commit 7414177 wrote. Their configs have the previous names of
// keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "colossal/base/json_file.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/run/config.h"
#include "colossal/run/config_changes.h"
#include "colossal/run/data.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/trainer.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::older_runs_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsSupersetOf;

/// A copy of the runs, in which the test works: the paths of their configs are relative.
class OlderRuns : public testing::Test {
 protected:
  void SetUp() override {
    fs::copy(test::source_dir() + "/tests/train/older_runs", folder_ / "runs", fs::copy_options::recursive);
    before_ = fs::current_path();
    fs::current_path(folder_ / "runs");
  }
  void TearDown() override { fs::current_path(before_); }

  /// Resumes a run and compares what it restored with the files of its checkpoint.
  static void expect_restored(const std::string& name, const std::string& checkpoint, int64_t steps) {
    const run::GivenConfig given = run::read_given_config(name + "/config.toml", {});
    EXPECT_THAT(given.notices,
                IsSupersetOf({"data.faults is now data.on_error", "training.graph is now training.cuda_graph",
                              "parallel.zero_sharers is now parallel.zero_group"}));
    const fs::path saved = fs::path(name) / "checkpoints" / checkpoint;
    const auto manifest = parse_json(test::read_all(saved / "manifest.json"), saved.string(), "test");
    const auto& progress = manifest.at("progress");
    comm::run_ranks(1, [&](comm::World& world) {
      train::Trainer trainer(world, given.config, {.start = train::Start::Resume});
      EXPECT_EQ(trainer.engine().steps_done(), steps);
      train::Checkpoints("again", trainer.engine().mesh(), 0).save(trainer.engine());
    });
    EXPECT_EQ(test::read_all(fs::path("again") / checkpoint / "rank-00000.safetensors"),
              test::read_all(saved / "rank-00000.safetensors"))
        << "weights and states of the optimizer";
    run::RunData data = run::open_data(given.config, run::built_in(), "", 0, at::kCPU);
    data.training->restore(progress.at("data"));
    EXPECT_EQ(data.training->state(), progress.at("data"));
    EXPECT_EQ(run::listed(run::changes_since(progress, given.config, data.shape, run::built_in())), "");
  }

 private:
  test::TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(OlderRuns, RestoreTextFromJsonLines) { expect_restored("text", "step-000003", 3); }

TEST_F(OlderRuns, RestorePictures) { expect_restored("classes", "step-000004", 4); }

}  // namespace
}  // namespace colossal::older_runs_test
