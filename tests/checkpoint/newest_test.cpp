// The checkpoint from which a run continues: one rank reads the folder, damaged checkpoints are skipped and named, and
// another model never is.
#include "colossal/checkpoint/newest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/sample_state.h"
#include "colossal/comm/run_ranks.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::newest_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
namespace fs = std::filesystem;

class Newest : public testing::Test {
 protected:
  void SetUp() override {
    for (const int64_t step : {10, 20, 30})
      on_two([&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
        save(folder.path(), step, sample_state(coordinates, step), world, coordinates, 0);
      });
  }

  static void on_two(const std::function<void(comm::Group&, const tensor::MeshCoordinates&)>& work) {
    comm::run_ranks(2, [&](comm::World& world) {
      work(*world.make_group("world", {0, 1}), Layout{2, 1}.coordinates(world.rank()));
    });
  }

  /// Returns the result of rank 0. Both ranks must load the same bits, the state of that step.
  Found load(std::optional<int64_t> wanted = {}) {
    Found found;
    on_two([&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      TrainingState state = filled(sample_state(coordinates), 99);
      const Found here =
          load_newest(folder.path(), agreed_steps(folder.path(), world), wanted, state, world, coordinates);
      EXPECT_TRUE(same_bits(state, sample_state(coordinates, here.step))) << "rank " << world.rank();
      if (world.rank() == 0) found = here;
    });
    return found;
  }

  /// Returns the error, which must be the same on both ranks, and checks that no tensor changed.
  std::string refusal(std::optional<int64_t> wanted, const ProgressCheck& check = {}) {
    std::vector<std::string> messages(2, "loaded");
    on_two([&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      TrainingState state = filled(sample_state(coordinates), 99);
      try {
        load_newest(folder.path(), agreed_steps(folder.path(), world), wanted, state, world, coordinates, check);
      } catch (const Error& error) {
        EXPECT_TRUE(error.is_on_all_ranks());
        messages[world.rank()] = error.what();
      }
      EXPECT_TRUE(same_bits(state, filled(sample_state(coordinates), 99)));
    });
    EXPECT_EQ(messages[0], messages[1]);
    return messages[0];
  }

  std::string shard(int64_t step, int rank = 0) const {
    return step_path(folder.path(), step) + "/rank-0000" + std::to_string(rank) + ".safetensors";
  }
  void flip_last_byte(int64_t step) {
    std::string bytes = test::read_all(shard(step));
    bytes.back() ^= 1;
    std::ofstream(shard(step), std::ios::binary) << bytes;
  }

  test::TemporaryFolder folder;
};

TEST_F(Newest, LoadsTheNewestCheckpoint) {
  const Found found = load();
  EXPECT_EQ(found.step, 30);
  EXPECT_EQ(found.path, step_path(folder.path(), 30));
  EXPECT_TRUE(found.damaged.empty());
}

TEST_F(Newest, SkipsAndNamesDamagedCheckpoints) {
  flip_last_byte(30);
  Found found = load();
  EXPECT_EQ(found.step, 20);
  ASSERT_EQ(found.damaged.size(), 1u);
  EXPECT_THAT(found.damaged[0].what(), HasSubstr(shard(30)));
  EXPECT_THAT(found.damaged[0].what(), HasSubstr("is damaged"));

  fs::resize_file(shard(30), fs::file_size(shard(30)) - 1);
  found = load();
  EXPECT_EQ(found.step, 20);
  EXPECT_THAT(found.damaged.at(0).what(), HasSubstr("truncated"));

  fs::remove(shard(30));
  fs::remove(shard(20, 1));
  found = load();
  EXPECT_EQ(found.step, 10);
  ASSERT_EQ(found.damaged.size(), 2u);
  EXPECT_THAT(found.damaged[0].what(), HasSubstr(shard(30)));
  EXPECT_THAT(found.damaged[1].what(), HasSubstr(shard(20, 1)));

  flip_last_byte(10);
  EXPECT_THAT(refusal({}), HasSubstr("none of the checkpoints in " + folder.path() + " can be read (10, 20, 30)"));
}

TEST_F(Newest, NamesEachIncompleteFolderAndItsFault) {
  fs::remove(step_path(folder.path(), 30) + "/manifest.json");
  std::ofstream(folder / "step-000040") << "a file";
  fs::create_symlink("nowhere", folder / "step-000050");
  const StepFolders steps = step_folders(folder.path());
  EXPECT_THAT(steps.complete, ElementsAre(10, 20));
  EXPECT_THAT(steps.skipped, ElementsAre(Pair(30, step_path(folder.path(), 30) + ": it has no manifest.json"),
                                         Pair(40, step_path(folder.path(), 40) + ": it is not a folder"),
                                         Pair(50, step_path(folder.path(), 50) + ": No such file or directory")));
  EXPECT_EQ(steps.skipped_after(40), steps.skipped.at(50));
  on_two([&](comm::Group& world, const tensor::MeshCoordinates&) {
    EXPECT_EQ(agreed_steps(folder.path(), world).skipped, steps.skipped) << "rank " << world.rank();
  });
  EXPECT_EQ(load().step, 20);
  EXPECT_THAT(refusal(30), HasSubstr(steps.skipped.at(30)));
}

TEST_F(Newest, RefusesAFolderOfIncompleteStepsOnly) {
  for (const int64_t step : {10, 20, 30}) fs::remove(step_path(folder.path(), step) + "/manifest.json");
  EXPECT_THAT(refusal({}), HasSubstr("no complete checkpoint in " + folder.path() + " to resume from; incomplete: " +
                                     step_path(folder.path(), 10) + ": it has no manifest.json; "));
}

TEST_F(Newest, RefusesAFolderThatCannotBeRead) {
  fs::create_symlink("loop", folder / "loop");
  std::string message;
  try {
    step_folders(folder / "loop");
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("cannot read the folder of checkpoints " + folder / "loop: Too many levels"));
  EXPECT_THAT(step_folders(folder / "absent").complete, IsEmpty());
}

TEST_F(Newest, LoadsOrRefusesAGivenStep) {
  EXPECT_EQ(load(10).step, 10);
  EXPECT_THAT(refusal(15),
              HasSubstr("no complete checkpoint of step 15 in " + folder.path() + "; complete steps: 10, 20, 30"));
  flip_last_byte(20);
  EXPECT_THAT(refusal(20), HasSubstr("the checkpoint of step 20 cannot be read"));
}

TEST_F(Newest, RefusesToSkipAnotherRun) {
  const auto check = [](const nlohmann::json& progress) {
    require(progress.at("salt") == 17, "optimizer", "not of this run");
  };
  EXPECT_THAT(refusal({}, check),
              HasSubstr("[optimizer] " + step_path(folder.path(), 30) + " is from a different run: not of this run"))
      << "10 would do";
}

TEST_F(Newest, ReadsTheFolderOnOneRank) {
  on_two([&](comm::Group& world, const tensor::MeshCoordinates&) {
    const std::string seen = world.rank() == 0 ? folder.path() : folder / "lags-behind";
    EXPECT_THAT(agreed_steps(seen, world).complete, ElementsAre(10, 20, 30)) << "rank " << world.rank();
  });
}

TEST_F(Newest, SetsACheckpointAsideWithoutLoss) {
  EXPECT_EQ(set_aside(folder.path(), 30), folder / "step-000030.unused");
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(10, 20));
  fs::copy(step_path(folder.path(), 20), step_path(folder.path(), 30), fs::copy_options::recursive);
  EXPECT_EQ(set_aside(folder.path(), 30), folder / "step-000030.unused-2");
  EXPECT_TRUE(fs::exists(folder / "step-000030.unused/manifest.json"));
}

// Only rank 0 prunes, after the last agreement of a save. If it threw, the other ranks would continue without it.
TEST(Prune, DoesNothingIfTheFolderCannotBeRead) {
  test::TemporaryFolder folder;
  fs::create_symlink("loop", folder / "loop");  // the link cannot be followed, not even by root
  EXPECT_THROW(complete_steps(folder / "loop"), Error);
  EXPECT_NO_THROW(prune(folder / "loop", 20, 1));
}

}  // namespace
}  // namespace colossal::checkpoint::newest_test
