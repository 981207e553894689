// `colossal train` of a model that learns latents, when it is killed: while pictures are encoded, and between steps.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "colossal/base/checksum.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/report/metrics.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace colossal::test::latent_kills_test {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 24;

class LatentKills : public testing::Test {
 protected:
  LatentKills() {
    for (int i = 0; i < 80; ++i) {  // two shards; of two shapes, in two buckets
      const int64_t width = i % 3 == 0 ? 32 : 16;
      std::vector<uint8_t> rgb(static_cast<size_t>(width * 16 * 3), static_cast<uint8_t>(i));
      const std::string name = concat("pictures/", i);
      folder_.write(name + ".png", data::encode_png({width, 16, std::move(rgb)}));
      folder_.write(name + ".txt", concat("picture ", i % 4));
    }
  }
  using Words = std::vector<std::string>;
  /// Runs `colossal train` in the folder `name` until its end, or until `dies` returns true.
  Finished train(const std::string& name, const std::function<bool()>& dies = {}) const {
    return train(name, source_dir() + "/examples/sd_finetune.toml", of_pictures(), dies);
  }
  Finished train(const std::string& name, const std::string& example, const Words& flags,
                 const std::function<bool()>& dies) const {
    Words words{program_path(),
                "train",
                example,
                "--resume",
                "--run.folder=" + (folder_ / name),
                "--run.device=cpu",
                "--run.matmul=mkl",
                "--data.held_out=0",
                concat("--training.steps=", kSteps),
                "--training.ema=0.9",
                "--training.save_every=1",
                "--training.evaluate_batches=0",
                "--training.sample_every=0"};
    words.insert(words.end(), flags.begin(), flags.end());
    return run_process(
        {.command = words, .limit = std::chrono::seconds(100), .meanwhile = [&](const std::string&, int process) {
           if (dies && dies()) kill(process, SIGKILL);
         }});
  }
  Words of_pictures() const {
    return {"--model.features=[8,16]",    "--model.resnets=1",
            "--model.transformers=[1,0]", "--model.attention_heads=[2,2]",
            "--model.groups=4",           "--data.path=" + (folder_ / "pictures"),
            "--data.size=16,16",          "--data.buckets=4",
            "--data.mirror=false",        "--training.batch_size=4"};
  }
  /// Checks that each shard with a note is whole, and returns how many there are.
  int64_t whole_shards(const std::string& name) const {
    int64_t count = 0;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_ / name + "/latents", none)) {
      if (entry.path().extension() != ".json") continue;
      const std::string note = entry.path().string(), shard = note.substr(0, note.size() - 5) + ".safetensors";
      EXPECT_EQ(read_json_object(note, "test").at("checksum"), file_checksum(shard));
      ++count;
    }
    return count;
  }
  int64_t steps(const std::string& name) const {
    const std::vector<int64_t> all = checkpoint::complete_steps(folder_ / name + "/checkpoints");
    return all.empty() ? 0 : all.back();
  }
  std::string last_step(const std::string& name) const {
    return checkpoint::step_path(folder_ / name + "/checkpoints", kSteps);
  }
  /// Returns what its checkpoint has besides tensors, but for the config, which names the folder.
  nlohmann::json progress(const std::string& name) const {
    nlohmann::json progress = checkpoint::read_progress(last_step(name));
    progress.erase("config");
    return progress;
  }
  std::string tensors(const std::string& name) const {
    return read_file(last_step(name) + "/rank-00000.safetensors", 1 << 28);
  }
  std::vector<double> losses(const std::string& name) const {
    return report::read_metrics(folder_ / name + "/metrics.jsonl").values("loss", 0);
  }
  TemporaryFolder folder_;
};

TEST_F(LatentKills, ContinueBitForBit) {
  ASSERT_EQ(train("whole").status, 0);
  const auto is_killed = [&](const std::function<bool()>& dies) {
    const Finished result = train("killed", dies);
    EXPECT_EQ(result.status, 128 + SIGKILL) << result.output;
    return whole_shards("killed") > 0;
  };
  ASSERT_TRUE(is_killed([&] { return whole_shards("killed") > 0; })) << "while pictures are encoded";
  constexpr int64_t least = 3;
  ASSERT_TRUE(is_killed([&] { return steps("killed") >= least; })) << "after " << least << " steps";
  const Finished last = train("killed");
  ASSERT_EQ(last.status, 0) << last.output;
  EXPECT_EQ(whole_shards("killed"), whole_shards("whole"));
  EXPECT_EQ(losses("killed"), losses("whole"));
  EXPECT_EQ(progress("killed"), progress("whole")) << "the position in the buckets";
  EXPECT_TRUE(tensors("killed") == tensors("whole")) << "weights, their average and the optimizer's states";
}

// In pixels, of three lengths with batches of their own; 12 clips are a few batches an epoch.
TEST_F(LatentKills, ContinueClipsBitForBit) {
  const auto clips = [&](const std::string& name, const std::function<bool()>& dies = {}) {
    return train(name, source_dir() + "/examples/stdit_clips.toml",
                 {"--model.hidden=16", "--model.heads=2", "--model.kv_heads=2", "--model.ffn=32", "--model.height=8",
                  "--model.width=8", "--data.path=builtin-shapes:12", "--data.frames=1,2,4", "--data.keep=1,0.6,0.5",
                  "--data.batch_sizes=4,2,1"},
                 dies);
  };
  ASSERT_EQ(clips("whole").status, 0);
  for (const int64_t least : {2, 7})
    ASSERT_EQ(clips("killed", [&] { return steps("killed") >= least; }).status, 128 + SIGKILL);
  const Finished last = clips("killed");
  ASSERT_EQ(last.status, 0) << last.output;
  EXPECT_EQ(losses("killed"), losses("whole"));
  EXPECT_EQ(progress("killed"), progress("whole")) << "the position in the buckets";
  EXPECT_TRUE(tensors("killed") == tensors("whole")) << "weights, their average and the optimizer's states";
}

}  // namespace
}  // namespace colossal::test::latent_kills_test
