// Whole runs in a temporary folder: resuming is bitwise, layouts can change between stop and resume, and a finished run
// is not overwritten without a flag.
#include "colossal/train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/run_folder.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/report/metrics.h"
#include "support/steps.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"
#include "train/whole_runs.h"

namespace colossal::train::trainer_test {
namespace {

using Steps = std::vector<int64_t>;

TEST_F(Run, ResumesBitwise) {
  for (const auto& [data, tensor] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    const std::string tag = concat(data, "x", tensor);
    const auto whole = train(make("whole" + tag, data, tensor), Start::New);
    const run::Config parts = make("parts" + tag, data, tensor);
    train(parts, Start::New, 10);
    EXPECT_EQ(checkpoint::complete_steps(parts.run.folder + "/checkpoints").back(), 10);
    const auto resumed = train(parts, Start::Resume);
    for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, resumed.at(name))) << tag << " " << name;
    const auto a = report::read_metrics(base + "/whole" + tag + "/metrics.jsonl"),
               b = report::read_metrics(parts.run.folder + "/metrics.jsonl");
    ASSERT_EQ(a.size(), 20u);
    ASSERT_EQ(b.size(), 20u);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a.value("loss", i), b.value("loss", i)) << tag << " step " << i + 1;
  }
}

TEST_F(Run, ResumesUnderAnotherLayout) {
  const auto whole = train(make("whole", 1, 1), Start::New);
  train(make("parts", 2, 1), Start::New, 6);
  train(make("parts", 1, 2), Start::Resume, 7);
  const auto last = train(make("parts", 1, 1), Start::Resume);
  for (const auto& [name, value] : whole) test::expect_close(last.at(name), value, 1 << 16, name);
  const double want = test::last(report::read_metrics(base + "/whole/metrics.jsonl"), "loss");
  const double got = test::last(report::read_metrics(base + "/parts/metrics.jsonl"), "loss");
  EXPECT_NEAR(got, want, 1e-4 * want);  // fp32, 20 steps
}

TEST_F(Run, WritesItsFolder) {
  const run::Config c = make("run", 2, 1);
  train(c, Start::New);
  for (const char* file :
       {"/config.toml", "/metrics.jsonl", "/metrics.json", "/report.html", "/log-rank-0.txt", "/log-rank-1.txt"})
    EXPECT_TRUE(std::filesystem::exists(c.run.folder + file)) << file;
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints"), (std::vector<int64_t>{15, 20}));
  const auto metrics = report::read_metrics(c.run.folder + "/metrics.jsonl");
  EXPECT_GT(test::last(metrics, "eval_loss"), 0);
  EXPECT_LT(test::last(metrics, "loss"), test::first(metrics, "loss"));
  EXPECT_GT(test::last(metrics, "mfu"), 0);
  for (const report::MetricColumn& column : metrics.columns())
    EXPECT_TRUE(report::read_metric_names(c.run.folder + "/metrics.json").contains(column.name)) << column.name;
}

TEST_F(Run, ShowsItsPipeline) {
  run::Config c = make("run", 1, 1);
  c.parallel.pipeline.size = 2;
  c.training.steps = 4;
  train(c, Start::New);
  const std::string trace = c.run.folder + "/pipeline_trace.json", report = c.run.folder + "/report.html";
  EXPECT_TRUE(std::filesystem::exists(trace));
  EXPECT_NE(read_file(report, 1 << 24).find(">measured (ms)<"), std::string::npos);
  train(c, Start::Resume);  // resumes a finished run: no step, no timeline
  EXPECT_EQ(read_file(report, 1 << 24).find(">measured (ms)<"), std::string::npos);
}

TEST_F(Run, RefusesToReplaceARunWithoutAFlag) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New);
  EXPECT_NE(test::thrown_message([&] {
              train(c, Start::New);
            }).find("--resume to continue from it, --overwrite to start from scratch"),
            std::string::npos);
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints").back(), 20);
  c.training.steps = 5;
  train(c, Start::Overwrite);
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints"), (std::vector<int64_t>{5}));
}

TEST_F(Run, KeepsAnOverwrittenRunUntilACheckpoint) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New);
  const auto old = report::read_metrics(c.run.folder + "/metrics.jsonl");
  const std::string rollouts = RunFolder(c.run.folder).rollouts();
  std::filesystem::create_directories(rollouts + "/step-000001");
  train_and_die(c, Start::Overwrite, 3);
  EXPECT_FALSE(std::filesystem::exists(rollouts));
  EXPECT_EQ(steps_in(c, "/checkpoints.replaced"), (Steps{15, 20}));
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("already holds"), std::string::npos);
  c.training.steps = 22;  // --resume continues the earlier run, without any file of the dead one
  train(c, Start::Resume);
  EXPECT_EQ(steps_in(c), (Steps{20, 22}));
  EXPECT_FALSE(std::filesystem::exists(c.run.folder + "/checkpoints.replaced"));
  EXPECT_TRUE(std::filesystem::exists(rollouts + "/step-000001"));
  const auto metrics = report::read_metrics(c.run.folder + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 22u);
  for (size_t i = 0; i < old.size(); ++i)
    EXPECT_EQ(metrics.value("seconds", i), old.value("seconds", i)) << "a line of the dead run";
  EXPECT_NE(log_of(c).find("ended before its first checkpoint"), std::string::npos);
}

TEST_F(Run, RemovesAnOverwrittenRunAfterACheckpoint) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New);
  train_and_die(c, Start::Overwrite, 2);
  train_and_die(c, Start::Overwrite, 3);  // runs twice: the run that is set aside is still the first one
  EXPECT_EQ(steps_in(c, "/checkpoints.replaced"), (Steps{15, 20}));
  train_and_die(c, Start::Overwrite, 7);
  EXPECT_EQ(steps_in(c), (Steps{5})) << "older steps of more are not mixed in";
  EXPECT_FALSE(std::filesystem::exists(c.run.folder + "/checkpoints.replaced"));
  train(c, Start::Resume);
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  EXPECT_EQ(report::read_metrics(c.run.folder + "/metrics.jsonl").size(), 20u);
}

TEST_F(Run, SurvivesAKillDuringOverwrite) {
  const run::Config c = make("run", 1, 1);
  train(c, Start::New);
  // the first of several renames
  std::filesystem::rename(c.run.folder + "/metrics.jsonl", c.run.folder + "/checkpoints/metrics.jsonl");
  train(c, Start::Resume);
  EXPECT_EQ(report::read_metrics(c.run.folder + "/metrics.jsonl").size(), 20u);
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
}

TEST_F(Run, SkipsDamagedCheckpointsWithAWarning) {
  const auto whole = train(make("whole", 2, 1), Start::New);
  const run::Config c = make("run", 2, 1);
  train(c, Start::New, 12);
  const std::string shard = c.run.folder + "/checkpoints/step-000012/rank-00000.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  const auto resumed = train(c, Start::Resume);
  for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, resumed.at(name))) << name;
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  const std::string log = log_of(c);
  EXPECT_EQ(times("a newer checkpoint cannot be read and is skipped: " + shard, log), 1u) << log;
  EXPECT_EQ(times("resumed from " + c.run.folder + "/checkpoints/step-000010", log), 1u) << log;
  EXPECT_TRUE(std::filesystem::exists(c.run.folder + "/checkpoints/step-000012.unused/manifest.json"));
}

TEST_F(Run, ReportsDamageAndNotAChangedConfig) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New, 5);
  std::filesystem::remove(c.run.folder + "/checkpoints/step-000005/rank-00000.safetensors");
  c.training.steps = 30;
  const std::string message = test::thrown_message([&] { train(c, Start::Resume); });
  EXPECT_NE(message.find("none of the checkpoints in"), std::string::npos) << message;
  EXPECT_EQ(message.find("Restore these values"), std::string::npos) << message;
}

TEST_F(Run, ResumesFromTheNamedStep) {
  const run::Config c = make("run", 1, 1);
  const auto whole = train(c, Start::New);
  EXPECT_NE(test::thrown_message([&] { train(c, Start::Resume, 0, 7); }).find("complete steps: 15, 20"),
            std::string::npos);
  const auto again = train(c, Start::Resume, 0, 15);
  for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, again.at(name))) << name;
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  EXPECT_TRUE(std::filesystem::exists(c.run.folder + "/checkpoints/step-000020.unused/manifest.json"))
      << "of the other line, and not lost";
  EXPECT_EQ(report::read_metrics(c.run.folder + "/metrics.jsonl").size(), 20u);
}

TEST_F(Run, ContinuesWithoutWritableMetrics) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "/dev/full is absent";
  const run::Config c = make("run", 1, 1);
  std::filesystem::create_directories(c.run.folder);
  std::filesystem::create_symlink("/dev/full", c.run.folder + "/metrics.jsonl");
  train(c, Start::New);
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  const std::string log = log_of(c);
  EXPECT_EQ(times("cannot write to " + c.run.folder + "/metrics.jsonl", log), 1u) << log;
  EXPECT_EQ(times("the report of this run cannot be written", log), 1u) << log;
}

TEST_F(Run, ContinuesAfterAFailedCheckpoint) {
  const run::Config c = make("run", 1, 1);
  const std::string folder = c.run.folder + "/checkpoints";
  const auto block = [&] {  // a file in the place of the folder stops every save, even by root
    std::filesystem::rename(folder, folder + ".away");
    std::ofstream(folder) << "in the way";
  };
  during(c, Start::New, [&](int64_t step) {
    if (step == 7) block();
    if (step != 12) return;
    std::filesystem::remove(folder);
    std::filesystem::rename(folder + ".away", folder);
  });
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  EXPECT_EQ(times("the checkpoint of step 10 cannot be written", log_of(c)), 1u) << log_of(c);
  EXPECT_NE(log_of(c).find("the newest checkpoint is that of step 5"), std::string::npos);

  const std::string last = test::thrown_message([&] {
    during(c, Start::Overwrite, [&](int64_t step) {
      if (step == 17) block();
    });
  });
  EXPECT_NE(last.find("cannot create the folder " + folder), std::string::npos) << last;
  std::filesystem::remove(folder);
  std::filesystem::remove_all(folder + ".away");
  const std::string first = test::thrown_message([&] {
    during(c, Start::New, [&](int64_t step) {
      if (step == 2) block();
    });
  });
  EXPECT_NE(first.find("cannot create the folder " + folder), std::string::npos) << "nothing to go on from: " << first;
}

TEST_F(Run, RefusesModelsLargerThanMemory) {
  run::Config c = make("run", 2, 1);
  c.model.layers = 1'000'000'000;
  const std::string message = test::thrown_message([&] { train(c, Start::New); });
  EXPECT_NE(message.find("[model] a model of 1000000000 layers"), std::string::npos) << message;
  EXPECT_NE(message.find("does not fit"), std::string::npos) << message;
}

TEST_F(Run, RefusesTheCheckpointOfAForeignModel) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New);
  c.model.layers = 3;
  const std::string message = test::thrown_message([&] { train(c, Start::Resume); });
  EXPECT_NE(message.find("model.blocks.2.mlp.up.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("checkpoints/step-000020 is from a different model, optimizer or precision"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("Changed since it was saved: model.layers = 2 -> 3. Restore these values"), std::string::npos)
      << message;
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints").back(), 20);
}

TEST_F(Run, RefusesToResumeFromIncompleteCheckpointsOnly) {
  const run::Config c = make("run", 2, 1);
  train(c, Start::New, 3);
  const std::string step = checkpoint::step_path(c.run.folder + "/checkpoints", 3);
  std::filesystem::remove(step + "/manifest.json");
  for (const Start start : {Start::Resume, Start::New})
    EXPECT_NE(test::thrown_message([&] { train(c, start); }).find(step + ": it has no manifest.json"),
              std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(step + "/rank-00000.safetensors"));
  train(c, Start::Overwrite);
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
}

TEST_F(Run, SetsIncompleteCheckpointsAsideOnOverwrite) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New, 7);
  const std::string folder = c.run.folder + "/checkpoints";
  for (const int64_t step : {5, 7}) std::filesystem::remove(checkpoint::step_path(folder, step) + "/manifest.json");
  c.training.steps = 5;  // step 7 is beyond the end of the new run, step 5 equals its last step
  train(c, Start::Overwrite);
  EXPECT_EQ(steps_in(c), (Steps{5}));
  EXPECT_TRUE(checkpoint::step_folders(folder).skipped.empty());
  for (const int64_t step : {5, 7}) {
    const std::string path = checkpoint::step_path(folder, step);
    EXPECT_TRUE(std::filesystem::exists(path + ".unused/rank-00000.safetensors")) << path;
    const std::string aside = path + ".unused";
    EXPECT_EQ(times(concat("the incomplete checkpoint of step ", step, " is set aside as ", aside), log_of(c)), 1u);
  }
}

TEST_F(Run, NamesIncompleteCheckpointsAndSetsNewerOnesAside) {
  const run::Config c = make("run", 1, 1);
  train(c, Start::New, 12);  // keeps 10 and 12
  const std::string step = checkpoint::step_path(c.run.folder + "/checkpoints", 12);
  std::filesystem::remove(step + "/manifest.json");
  train(c, Start::Resume, 1);
  EXPECT_NE(log_of(c).find("an incomplete checkpoint is skipped: " + step + ": it has no manifest.json"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(step + ".unused/rank-00000.safetensors"));
  EXPECT_EQ(steps_in(c), (Steps{10, 11}));
}

TEST_F(Run, EndsIfItsFolderIsRecreated) {
  for (const int64_t data : {1, 2}) {
    const run::Config c = make(concat("run-", data), data, 1);
    std::unique_ptr<RunLock> other;
    const auto replace_folder = [&](int64_t step) {
      if (step != 7) return;
      std::filesystem::rename(c.run.folder, c.run.folder + "-moved");
      RunFolder(c.run.folder).create();
      other = std::make_unique<RunLock>(c.run.folder);
    };
    const std::string message = test::thrown_message([&] {
      comm::run_ranks(static_cast<int>(data), [&](comm::World& world) {
        int64_t step = 0;
        TrainerOptions options{.start = Start::New};
        options.stop_requested = [&] {
          if (world.rank() == 0) replace_folder(++step);
          return false;
        };
        Trainer(world, c, options).run();
      });
    });
    EXPECT_NE(message.find("the folder " + c.run.folder + " must not be deleted, moved or recreated"),
              std::string::npos)
        << message;
    EXPECT_EQ(steps_in(c), Steps{}) << "the folder belongs to another run";
    EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "-moved/checkpoints"), Steps{5});
  }
}

}  // namespace
}  // namespace colossal::train::trainer_test
