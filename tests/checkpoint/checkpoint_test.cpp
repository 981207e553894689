#include "colossal/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "checkpoint/sample_state.h"
#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/run_ranks.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::checkpoint_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

void save_sample(const std::string& folder, int64_t step, const Layout& layout = {}, int keep_last = 0) {
  on_layout(layout, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    save(folder, step, sample_state(coordinates, step), world, coordinates, keep_last);
  });
}

/// Returns the error of load() on one rank, and checks that it changed no tensor.
std::string refusal(const std::string& path, TrainingState state = filled(sample_state(Layout{}.coordinates(0)), 7)) {
  std::string message = "loaded";
  const TrainingState before = [&] {
    TrainingState copy = state;
    for (NamedTensor& tensor : copy.tensors) tensor.value = tensor.value.clone();
    return copy;
  }();
  on_layout({}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    try {
      load(path, state, world, coordinates);
    } catch (const Error& error) {
      message = error.what();
    }
  });
  EXPECT_TRUE(same_bits(before, state)) << "a refused load must change nothing";
  return message;
}

TEST(Checkpoint, LoadsUnderEveryLayoutBitwise) {
  test::TemporaryFolder folder;
  for (const Layout& from : layouts()) {
    save_sample(folder.path(), 7, from);
    for (const Layout& to : layouts()) {
      SCOPED_TRACE(concat("from ", from.data, "x", from.tensor, " to ", to.data, "x", to.tensor));
      on_layout(to, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
        TrainingState state = filled(sample_state(coordinates, 7), 99);
        load(*latest(folder.path()), state, world, coordinates);
        EXPECT_TRUE(same_bits(state, sample_state(coordinates, 7))) << "rank " << world.rank();
      });
    }
  }
}

TEST(Checkpoint, StoresEachElementOnce) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 1, {1, 1});
  save_sample(folder.path(), 2, {4, 4});
  const auto data_bytes = [&](int64_t step) {
    int64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(step_path(folder.path(), step))) {
      if (file.path().extension() != ".safetensors") continue;
      const std::string text = test::read_all(file.path().string());
      bytes += text.size() - 8 - (static_cast<unsigned char>(text[0]) + 256 * static_cast<unsigned char>(text[1]));
    }
    return bytes;
  };
  EXPECT_EQ(data_bytes(1), data_bytes(2));
}

TEST(Checkpoint, ThrowsOnEveryRankIfATensorCannotBeFilled) {
  test::TemporaryFolder folder;
  const Layout layout{2, 2};
  save_sample(folder.path(), 1, layout);
  std::vector<std::string> said(layout.ranks(), "loaded");
  on_layout(layout, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    TrainingState state = sample_state(coordinates, 1);
    tensor::Stored& value = state.tensors[3].value;
    if (world.rank() == 2)
      value = tensor::Stored(at::TensorOptions().dtype(value.scalar_type()), value.sizes().vec(),
                             [](bool) -> tensor::Held { throw Error("offload", "its place is gone"); });
    try {
      load(*latest(folder.path()), state, world, coordinates);
    } catch (const Error& error) {
      said[world.rank()] = error.what();
    }
  });
  EXPECT_THAT(said, testing::Each(HasSubstr("its place is gone")));
}

TEST(Checkpoint, KeepsTheLastAndRemovesLeftovers) {
  test::TemporaryFolder folder;
  folder.write(".step-000002.partial/rank-00000.safetensors", "half");
  folder.write("step-000003/rank-00000.safetensors", "no manifest: not complete");
  folder.write("notes.txt", "not ours");
  for (int64_t step : {10, 20, 30}) save_sample(folder.path(), step, {2, 1}, 2);
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(20, 30));
  EXPECT_FALSE(fs::exists(folder / ".step-000002.partial"));
  EXPECT_TRUE(fs::exists(folder / "notes.txt"));
  EXPECT_EQ(*latest(folder.path()), folder / "step-000030");
  save_sample(folder.path(), 5, {}, 2);
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(5, 20, 30)) << "the one just written is never removed";
  save_sample(folder.path(), 1'000'000, {}, 0);
  EXPECT_EQ(complete_steps(folder.path()).back(), 1'000'000);
}

TEST(Checkpoint, NeedsTheLockOfTheRunFolder) {
  test::TemporaryFolder folder;
  const std::string steps = folder / "run/checkpoints";
  EXPECT_EQ(run_folder_of(steps), folder / "run");
  EXPECT_EQ(run_folder_of(steps + "/"), folder / "run");
  EXPECT_EQ(run_folder_of(folder / "run"), folder / "run");
  EXPECT_EQ(run_folder_of("checkpoints"), ".");
  save_sample(steps, 1);
  begin_partial(steps, 2);  // a save of the run that holds the lock
  const RunLock lock(folder / "run");
  for (const Layout& layout : {Layout{}, Layout{2, 1}}) {
    std::string message;
    try {
      save_sample(steps, 3, layout);
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("[run] another run is writing to " + folder / "run"));
    EXPECT_TRUE(fs::exists(partial_path(steps, 2))) << "it belongs to the other run";
    EXPECT_THAT(complete_steps(steps), ElementsAre(1));
  }
  on_layout({}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    save(steps, 3, sample_state(coordinates, 3), world, coordinates, 0, &lock);
  });
  EXPECT_THAT(complete_steps(steps), ElementsAre(1, 3));
}

TEST(Checkpoint, ReplacesAnEqualStep) {
  test::TemporaryFolder folder;
  on_layout({}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    save(folder.path(), 4, sample_state(coordinates, 1), world, coordinates, 0);
    save(folder.path(), 4, sample_state(coordinates, 2), world, coordinates, 0);
    TrainingState state = filled(sample_state(coordinates), 0);
    load(step_path(folder.path(), 4), state, world, coordinates);
    EXPECT_TRUE(same_bits(state, sample_state(coordinates, 2)));
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
}

TEST(Checkpoint, FindsNoCheckpointInAMissingFolder) {
  EXPECT_FALSE(latest("/nonexistent/folder"));
  EXPECT_THAT(refusal("/nonexistent/folder/step-000001"), HasSubstr("/nonexistent/folder/step-000001/manifest.json"));
}

TEST(Checkpoint, ReadsProgressWithoutTensors) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 3);
  EXPECT_EQ(read_progress(*latest(folder.path())), sample_state(Layout{}.coordinates(0), 3).progress);
}

TEST(Checkpoint, RefusesAnotherModelWithATable) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 1);
  TrainingState other = filled(sample_state(Layout{}.coordinates(0)), 7);
  other.tensors[0] = {"wte", at::zeros({2, 3}), tensor::ShardSpec::whole({2, 3})};
  other.tensors[4] = {"norm.weight", at::zeros({5}), tensor::ShardSpec::whole({5})};
  other.tensors[5].value = at::zeros({}, at::kFloat);
  const std::string message = refusal(*latest(folder.path()), other);
  EXPECT_THAT(message, HasSubstr("from a different model"));
  EXPECT_THAT(message, testing::ContainsRegex("wte +Float \\[2, 3\\] +-"));
  EXPECT_THAT(message, testing::ContainsRegex("norm.weight +Float \\[5\\] +Float \\[6\\]"));
  EXPECT_THAT(message, testing::ContainsRegex("tokens_seen +Float \\[\\] +Long \\[\\]"));
  EXPECT_THAT(message, testing::ContainsRegex("embedding.weight +- +Float \\[11, 6\\]"));
}

TEST(Checkpoint, LoadsAPartByPrefix) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 1);
  on_layout({}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    TrainingState norm = filled(sample_state(coordinates, 1), 7);
    norm.tensors = {norm.tensors[4]};
    EXPECT_THROW(load(*latest(folder.path()), norm, world, coordinates), Error) << "the whole is wanted";
    EXPECT_THROW(load(*latest(folder.path()), norm, world, coordinates, "blocks."), Error) << "its blocks are wanted";
    load(*latest(folder.path()), norm, world, coordinates, "norm.");
    EXPECT_TRUE(same_bits(norm.tensors[0].value.clone(), sample_state(coordinates, 1).tensors[4].value.clone()));
  });
}

TEST(Checkpoint, FindsDamageBeforeLoading) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 1);
  const std::string path = *latest(folder.path()), shard = path + "/rank-00000.safetensors";
  const std::string manifest = path + "/manifest.json";
  const std::string good_shard = test::read_all(shard), good_manifest = test::read_all(manifest);

  for (size_t from_end : {size_t{1}, size_t{100}, size_t{600}}) {
    std::string damaged = good_shard;
    damaged[damaged.size() - from_end] ^= 1;
    std::ofstream(shard, std::ios::binary) << damaged;
    EXPECT_THAT(refusal(path), HasSubstr("damaged")) << from_end;
  }
  std::ofstream(shard, std::ios::binary) << good_shard.substr(0, good_shard.size() - 1);
  EXPECT_THAT(refusal(path), HasSubstr("truncated"));
  fs::remove(shard);
  EXPECT_THAT(refusal(path), HasSubstr(shard));
  std::ofstream(shard, std::ios::binary) << good_shard;

  std::string edited = good_manifest;
  edited.replace(edited.find("0.1"), 3, "0.2");
  std::ofstream(manifest, std::ios::binary) << edited;
  EXPECT_THAT(refusal(path), HasSubstr("damaged"));
  std::ofstream(manifest, std::ios::binary) << good_manifest.substr(0, good_manifest.size() / 2);
  EXPECT_THAT(refusal(path), HasSubstr("not valid JSON"));
  std::ofstream(manifest, std::ios::binary) << good_manifest;
  EXPECT_EQ(refusal(path, sample_state(Layout{}.coordinates(0), 1)), "loaded") << "undamaged again";
}

/// Edits a manifest and updates its checksum.
void forge(const std::string& path, const std::function<void(nlohmann::json&)>& edit) {
  nlohmann::json manifest = nlohmann::json::parse(test::read_all(path));
  manifest.erase("checksum");
  edit(manifest);
  manifest["checksum"] = checksum(manifest.dump());
  std::ofstream(path, std::ios::binary) << manifest.dump();
}

TEST(Checkpoint, RefusesForgedManifests) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 1, {1, 2});
  const std::string path = *latest(folder.path()), manifest = path + "/manifest.json", good = test::read_all(manifest);
  const std::vector<std::function<void(nlohmann::json&)>> edits = {
      [](auto& m) { m["version"] = 2; },
      [](auto& m) { m["blocks"] = 3; },
      [](auto& m) { m["blocks"].erase(0); },
      [](auto& m) { m["blocks"].push_back(m["blocks"][0]); },
      [](auto& m) { m["blocks"][1] = m["blocks"][0]; },
      [](auto& m) { m["blocks"][0]["rank"] = 77; },
      [](auto& m) { m["blocks"][0]["rank"] = "../../etc/passwd"; },
      [](auto& m) { m["blocks"][0]["start"][0] = -1; },
      [](auto& m) { m["blocks"][0]["start"][0] = 9223372036854775807; },
      [](auto& m) { m["blocks"][0]["size"][0] = 9223372036854775807; },
      [](auto& m) { m["blocks"][0]["shape"][0] = 9223372036854775807; },
      [](auto& m) { m["blocks"][0]["size"] = nlohmann::json::array(); },
      [](auto& m) { m["blocks"][0]["dtype"] = "Complex"; },
      [](auto& m) { m["blocks"][0]["checksum"] = 1; },
      [](auto& m) { m.erase("progress"); },
  };
  for (size_t i = 0; i < edits.size(); ++i) {
    std::ofstream(manifest, std::ios::binary) << good;
    forge(manifest, edits[i]);
    EXPECT_NE(refusal(path), "loaded") << "edit " << i;
  }
}

TEST(Checkpoint, ThrowsTheSameErrorOnEveryRank) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 1, {1, 2});
  std::vector<std::string> messages(4);
  on_layout({2, 2}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    TrainingState state = sample_state(coordinates);
    if (world.rank() == 2) state.tensors[0].value = at::zeros({1});
    try {
      save(folder.path(), 2, state, world, coordinates, 1);
    } catch (const Error& error) {
      messages[world.rank()] = error.what();
    }
  });
  EXPECT_THAT(messages[0], HasSubstr("embedding.weight must have its spec's local shape"));
  EXPECT_THAT(messages[0], HasSubstr("(rank 2 of 4)"));
  EXPECT_THAT(messages, testing::Each(messages[0]));
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(1));
}

TEST(Checkpoint, KeepsTheOldCheckpointIfADiskIsFull) {
  test::TemporaryFolder folder;
  const tensor::ShardSpec spec = tensor::ShardSpec::split({3, 4096}, 0, {"tensor"});  // 32 KiB on rank 0, 16 on rank 1
  const auto state_of = [&](const tensor::MeshCoordinates& coordinates, double value) {
    return TrainingState{{{"x", at::full(spec.local_shape(coordinates), value), spec}}, {{"value", value}}};
  };
  std::vector<std::string> messages(2);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);  // write() then fails with EFBIG, as it does with ENOSPC
  on_layout({1, 2}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    save(folder.path(), 1, state_of(coordinates, 1), world, coordinates, 1);
    world.barrier().wait();
    if (world.rank() == 0) {
      rlimit small = before;
      small.rlim_cur = 24 * 1024;
      setrlimit(RLIMIT_FSIZE, &small);
    }
    world.barrier().wait();
    try {
      save(folder.path(), 2, state_of(coordinates, 2), world, coordinates, 1);
    } catch (const Error& error) {
      messages[world.rank()] = error.what();
    }
  });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(messages[0], HasSubstr("rank-00000.safetensors"));
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(1));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2) << "nothing half-written is left";
  on_layout({}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    TrainingState state = state_of(coordinates, 0);
    load(*latest(folder.path()), state, world, coordinates);
    EXPECT_EQ(state.progress["value"], 1.0);
  });
}

/// Starts a process that saves step after step until it is killed. If it ends otherwise, the reason is in
/// folder/error.txt.
pid_t start_saving(const test::TemporaryFolder& folder, int64_t step) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    on_layout({}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      for (;; ++step) save(folder.path(), step, sample_state(coordinates, step), world, coordinates, 2);
    });
  } catch (const std::exception& error) {
    folder.write("error.txt", error.what());
  }
  _exit(1);
}

/// Returns true if a step after `step` becomes complete within 30 s.
bool appears_after(const std::string& folder, int64_t step) {
  for (int wait_ms = 0; wait_ms < 30'000; ++wait_ms) {
    const std::vector<int64_t> steps = complete_steps(folder);
    if (!steps.empty() && steps.back() > step) return true;
    usleep(1000);
  }
  return false;
}

TEST(Checkpoint, SurvivesKillsAtAnyMoment) {
  test::TemporaryFolder folder;
  save_sample(folder.path(), 1);
  std::mt19937 random(0);
  int64_t last = 1;
  for (int kill_number = 0; kill_number < 50; ++kill_number) {
    const pid_t child = start_saving(folder, last + 1);
    ASSERT_GT(child, 0);
    // On any disk, every fifth child completes a checkpoint; the others are killed at a random time.
    if (kill_number % 5 == 0) {
      EXPECT_TRUE(appears_after(folder.path(), last));
    }
    usleep(std::uniform_int_distribution<int>(0, 40'000)(random));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << test::read_all(folder / "error.txt");
    const std::vector<int64_t> steps = complete_steps(folder.path());
    ASSERT_FALSE(steps.empty());
    for (int64_t step : steps) {
      on_layout({}, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
        TrainingState state = filled(sample_state(coordinates), 0);
        load(step_path(folder.path(), step), state, world, coordinates);
        EXPECT_TRUE(same_bits(state, sample_state(coordinates, step))) << step;
      });
    }
    last = steps.back();
  }
}

}  // namespace
}  // namespace colossal::checkpoint::checkpoint_test
