// Runs of older versions resume. tests/train/older_runs has the folders of two runs, of a GPT on JSON lines and of a
// vision transformer on pictures, that the version of commit 7414177 wrote; their configs have previous names of keys.
// A third one, of a BERT, is of commit 99d13484: its config has every key of [data], also those that it does not read.
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
  static void expect_restored(const std::string& name, const std::string& checkpoint, int64_t steps,
                              const std::vector<std::string>& notices) {
    const run::GivenConfig given = run::read_given_config(name + "/config.toml", {});
    EXPECT_THAT(given.notices, IsSupersetOf(notices));
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

const std::vector<std::string> kRenamed{"data.faults is now data.on_error", "training.graph is now training.cuda_graph",
                                        "parallel.zero_sharers is now parallel.zero_group"};

TEST_F(OlderRuns, RestoreTextFromJsonLines) { expect_restored("text", "step-000003", 3, kRenamed); }

TEST_F(OlderRuns, RestorePictures) { expect_restored("classes", "step-000004", 4, kRenamed); }

TEST_F(OlderRuns, RestoreMaskedText) { expect_restored("masked", "step-000003", 3, {}); }

}  // namespace
}  // namespace colossal::older_runs_test
