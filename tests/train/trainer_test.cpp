// Whole runs in a temporary folder: resuming is bitwise, layouts can change in between, nothing starts over a finished
// run unasked.
#include "colossal/train/trainer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/report/metrics.h"
#include "support/ranks_values.h"
#include "support/tolerance.h"

namespace colossal::train::trainer_test {
namespace {

class Run : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/trainer-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(base);
    std::filesystem::create_directories(base);
    std::ofstream text(base + "/text.txt");
    for (int i = 0; i < 400; ++i) text << "line " << i * 37 % 101 << " of a text that can be learnt\n";
  }

  run::Config make(const std::string& folder, int64_t data, int64_t tensor) const {
    run::Config c;
    c.run.folder = base + "/" + folder;
    c.run.device = "cpu";
    c.run.matmul = "mkl";
    c.model = {.name = "gpt2-tiny", .hidden = 32, .layers = 2, .heads = 4, .positions = 32, .dropout = 0.1};
    c.data.path = base + "/text.txt";
    c.data.sequence = 24;
    c.parallel.data = data;
    c.parallel.tensor.size = tensor;
    c.training = {.steps = 20, .batch_size = 8, .save_every = 5, .keep_last = 2, .evaluate_batches = 2};
    c.optimizer.warmup_steps = 3;
    c.optimizer.epsilon = 1e-3;  // a gradient that is zero but for rounding (a key's bias) must not become a whole step
    return c;
  }

  /// Trains until `stop_after` steps (0: to the end) and returns every parameter of rank 0.
  std::map<std::string, at::Tensor> train(const run::Config& c, Start start, int64_t stop_after = 0,
                                          std::optional<int64_t> resume_step = {}) const {
    std::map<std::string, at::Tensor> parameters;
    std::mutex mutex;
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      TrainerOptions options{.start = start, .resume_step = resume_step, .builtin_data = base + "/sources"};
      options.stop_requested = [&] { return stop_after > 0 && world.rank() == 0 && ++steps >= stop_after; };
      Trainer trainer(world, c, options);
      const bool shares = c.parallel.sequence.size > 1 && c.data.documents == "joined";
      EXPECT_EQ(trainer.engine().tokens_read().empty(), !shares);
      EXPECT_EQ(trainer.run(), stop_after == 0);
      trainer.write_report("sample");
      const std::lock_guard lock(mutex);
      if (world.rank() == 0)
        for (const nn::Parameter& p : trainer.engine().parameters()) parameters[p.name] = p.value.detach().clone();
    });
    return parameters;
  }
  /// Trains and dies after `steps` steps, as by a kill: nothing is cleaned up.
  void train_and_die(const run::Config& c, Start start, int64_t steps) const {
    const std::string message =
        test::thrown_message([&] { during(c, start, [&](int64_t step) { require(step < steps, "test", "dies"); }); });
    EXPECT_NE(message.find("dies"), std::string::npos) << message;
  }

  /// Trains to the end on one rank and calls `event` after every step.
  void during(const run::Config& c, Start start, const std::function<void(int64_t step)>& event) const {
    comm::run_ranks(1, [&](comm::World& world) {
      int64_t step = 0;
      TrainerOptions options{.start = start};
      options.stop_requested = [&] { return event(++step), false; };
      Trainer trainer(world, c, options);
      trainer.run();
      trainer.write_report("sample");
    });
  }

  std::vector<int64_t> steps_in(const run::Config& c, const std::string& folder = "/checkpoints") const {
    return checkpoint::complete_steps(c.run.folder + folder);
  }
  std::string log_of(const run::Config& c) const { return read_file(c.run.folder + "/log-rank-0.txt", 1 << 24); }
  size_t times(const std::string& word, const std::string& text) const {
    size_t count = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
    return count;
  }
  std::string base;
};

using Steps = std::vector<int64_t>;

TEST_F(Run, ResumeIsBitwise) {
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
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].loss, b[i].loss) << tag << " step " << i + 1;
  }
}

TEST_F(Run, ALayoutMayChangeBetweenStopAndResume) {
  const auto whole = train(make("whole", 1, 1), Start::New);
  train(make("parts", 2, 1), Start::New, 6);
  train(make("parts", 1, 2), Start::Resume, 7);
  const auto last = train(make("parts", 1, 1), Start::Resume);
  for (const auto& [name, value] : whole) test::expect_close(last.at(name), value, 1 << 16, name);
  const double want = report::read_metrics(base + "/whole/metrics.jsonl").back().loss;
  EXPECT_NEAR(report::read_metrics(base + "/parts/metrics.jsonl").back().loss, want, 1e-4 * want);  // fp32, 20 steps
}

// With joined documents each rank reads its own tokens alone, in training, evaluation and after a stop.
TEST_F(Run, RanksOfASequenceThatReadTheirOwnTokensTrainAsOneProcessDoes) {
  const auto joined = [&](const std::string& folder, int64_t ranks) {
    run::Config c = make(folder, 1, 1);
    c.parallel.sequence = {.size = ranks, .mode = "ring"};
    c.data.documents = "joined";
    c.precision.mode = "fp64";
    c.training.steps = 8;
    return c;
  };
  const auto whole = train(joined("whole", 1), Start::New);
  train(joined("parts", 2), Start::New, 3);
  const auto last = train(joined("parts", 2), Start::Resume);
  for (const auto& [name, value] : whole) test::expect_close(last.at(name), value, 1 << 16, name);
  const auto want = report::read_metrics(base + "/whole/metrics.jsonl"),
             got = report::read_metrics(base + "/parts/metrics.jsonl");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i].loss, want[i].loss, 1e-10 * want[i].loss);
}

// Behind the tokens that opening a file looks at, number 10 of each row is none: to read it is an error, and of two
// ranks the second one alone takes it.
TEST_F(Run, ARankOfASequenceReadsNoOtherTokensOfJoinedDocuments) {
  run::Config c = make("parts", 1, 1);
  c.parallel.sequence = {.size = 2, .mode = "ring"};
  c.data.documents = "joined";
  c.data.path = base + "/tokens.bin";
  std::vector<uint16_t> tokens(3'000'000);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<uint16_t>(i > 1'000'000 && i % 24 == 10 ? 60'000 : i % 97);
  write_file(c.data.path, std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof tokens[0]));
  write_file(c.data.path + ".json", R"({"dtype": "uint16"})");
  std::vector<std::string> refused(2);
  EXPECT_THROW(comm::run_ranks(2,
                               [&](comm::World& world) {
                                 try {
                                   Trainer(world, c, {.start = Start::New}).run();
                                 } catch (const std::exception& error) {
                                   refused[world.rank()] = error.what();
                                   throw;
                                 }
                               }),
               Error);
  EXPECT_EQ(refused[1].find("[data]"), 0u) << refused[1];
  EXPECT_NE(refused[0].find("[data]"), 0u) << refused[0];
}

TEST_F(Run, WritesItsFolder) {
  const run::Config c = make("run", 2, 1);
  train(c, Start::New);
  for (const char* file : {"/config.toml", "/metrics.jsonl", "/report.html", "/log-rank-0.txt", "/log-rank-1.txt"})
    EXPECT_TRUE(std::filesystem::exists(c.run.folder + file)) << file;
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints"), (std::vector<int64_t>{15, 20}));
  const auto metrics = report::read_metrics(c.run.folder + "/metrics.jsonl");
  EXPECT_TRUE(metrics.back().eval_loss.has_value());
  EXPECT_LT(metrics.back().loss, metrics.front().loss);
  EXPECT_GT(metrics.back().mfu, 0);
}

TEST_F(Run, ShowsItsPipeline) {
  run::Config c = make("run", 1, 1);
  c.parallel.pipeline.size = 2;
  c.training.steps = 4;
  train(c, Start::New);
  const std::string trace = c.run.folder + "/pipeline_trace.json", report = c.run.folder + "/report.html";
  EXPECT_TRUE(std::filesystem::exists(trace));
  EXPECT_NE(read_file(report, 1 << 24).find(">measured (ms)<"), std::string::npos);
  train(c, Start::Resume);  // of a finished run: no step, no timeline
  EXPECT_EQ(read_file(report, 1 << 24).find(">measured (ms)<"), std::string::npos);
}

TEST_F(Run, RefusesToStartOverAnOldRunUnlessToldTo) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New);
  EXPECT_NE(
      test::thrown_message([&] { train(c, Start::New); }).find("--resume to go on from it, --overwrite to start anew"),
      std::string::npos);
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints").back(), 20);
  c.training.steps = 5;
  train(c, Start::Overwrite);
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints"), (std::vector<int64_t>{5}));
}

TEST_F(Run, AnOverwrittenRunIsThereUntilTheFirstNewCheckpoint) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New);
  const auto old = report::read_metrics(c.run.folder + "/metrics.jsonl");
  train_and_die(c, Start::Overwrite, 3);
  EXPECT_EQ(steps_in(c, "/checkpoints.replaced"), (Steps{15, 20}));
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("already holds"), std::string::npos);
  c.training.steps = 22;  // --resume: the run that was there goes on, and nothing of the dead one is in it
  train(c, Start::Resume);
  EXPECT_EQ(steps_in(c), (Steps{20, 22}));
  EXPECT_FALSE(std::filesystem::exists(c.run.folder + "/checkpoints.replaced"));
  const auto metrics = report::read_metrics(c.run.folder + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 22u);
  for (size_t i = 0; i < old.size(); ++i)
    EXPECT_EQ(metrics[i].tokens_per_second, old[i].tokens_per_second) << "a line of the dead run";
  EXPECT_NE(log_of(c).find("ended before its first checkpoint"), std::string::npos);
}

TEST_F(Run, AnOverwrittenRunGoesWithTheFirstNewCheckpoint) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New);
  train_and_die(c, Start::Overwrite, 2);
  train_and_die(c, Start::Overwrite, 3);  // twice: what is set aside is still the old run
  EXPECT_EQ(steps_in(c, "/checkpoints.replaced"), (Steps{15, 20}));
  train_and_die(c, Start::Overwrite, 7);
  EXPECT_EQ(steps_in(c), (Steps{5})) << "older steps of more are not mixed in";
  EXPECT_FALSE(std::filesystem::exists(c.run.folder + "/checkpoints.replaced"));
  train(c, Start::Resume);
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  EXPECT_EQ(report::read_metrics(c.run.folder + "/metrics.jsonl").size(), 20u);
}

TEST_F(Run, AKillWhileARunIsSetAsideLosesNothing) {
  const run::Config c = make("run", 1, 1);
  train(c, Start::New);
  // the first of several renames
  std::filesystem::rename(c.run.folder + "/metrics.jsonl", c.run.folder + "/checkpoints/metrics.jsonl");
  train(c, Start::Resume);
  EXPECT_EQ(report::read_metrics(c.run.folder + "/metrics.jsonl").size(), 20u);
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
}

TEST_F(Run, ADamagedCheckpointIsPassedOverAloud) {
  const auto whole = train(make("whole", 2, 1), Start::New);
  const run::Config c = make("run", 2, 1);
  train(c, Start::New, 12);
  const std::string shard = c.run.folder + "/checkpoints/step-000012/rank-00000.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  const auto resumed = train(c, Start::Resume);
  for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, resumed.at(name))) << name;
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  const std::string log = log_of(c);
  EXPECT_EQ(times("a newer checkpoint cannot be read and is passed over: " + shard, log), 1u) << log;
  EXPECT_EQ(times("resumed from " + c.run.folder + "/checkpoints/step-000010", log), 1u) << log;
  EXPECT_TRUE(std::filesystem::exists(c.run.folder + "/checkpoints/step-000012.unused/manifest.json"));
}

TEST_F(Run, ADamagedCheckpointIsNotBlamedOnAChangedConfig) {
  run::Config c = make("run", 1, 1);
  train(c, Start::New, 5);
  std::filesystem::remove(c.run.folder + "/checkpoints/step-000005/rank-00000.safetensors");
  c.training.steps = 30;
  const std::string message = test::thrown_message([&] { train(c, Start::Resume); });
  EXPECT_NE(message.find("none of the checkpoints in"), std::string::npos) << message;
  EXPECT_EQ(message.find("Set that back"), std::string::npos) << message;
}

TEST_F(Run, ResumesFromTheStepThatIsNamed) {
  const run::Config c = make("run", 1, 1);
  const auto whole = train(c, Start::New);
  EXPECT_NE(test::thrown_message([&] { train(c, Start::Resume, 0, 7); }).find("of these steps there are: 15, 20"),
            std::string::npos);
  const auto again = train(c, Start::Resume, 0, 15);
  for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, again.at(name))) << name;
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  EXPECT_TRUE(std::filesystem::exists(c.run.folder + "/checkpoints/step-000020.unused/manifest.json"))
      << "of the other line, and not lost";
  EXPECT_EQ(report::read_metrics(c.run.folder + "/metrics.jsonl").size(), 20u);
}

TEST_F(Run, MetricsThatCannotBeWrittenDoNotEndIt) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "/dev/full is absent";
  const run::Config c = make("run", 1, 1);
  std::filesystem::create_directories(c.run.folder);
  std::filesystem::create_symlink("/dev/full", c.run.folder + "/metrics.jsonl");
  train(c, Start::New);
  EXPECT_EQ(steps_in(c), (Steps{15, 20}));
  const std::string log = log_of(c);
  EXPECT_EQ(times("cannot write to " + c.run.folder + "/metrics.jsonl", log), 1u) << log;
  EXPECT_EQ(times("there is no report of this run", log), 1u) << log;
}

TEST_F(Run, ACheckpointThatCannotBeWrittenInBetweenDoesNotEndIt) {
  const run::Config c = make("run", 1, 1);
  const std::string folder = c.run.folder + "/checkpoints";
  const auto block = [&] {  // a file in the place of the folder stops every save, also one of root's
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
  EXPECT_NE(log_of(c).find("the newest one is that of step 5"), std::string::npos);

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

TEST_F(Run, WhatCannotFitIntoMemoryIsRefusedBeforeItIsTaken) {
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
  EXPECT_NE(message.find("checkpoints/step-000020 is of another model, optimizer or precision"), std::string::npos)
      << message;
  EXPECT_NE(message.find("Changed since it was saved: model.layers = 2 -> 3. Set that back"), std::string::npos)
      << message;
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints").back(), 20);
}

TEST_F(Run, OnTheBuiltinTextGoesOnAfterThatWasEdited) {
  std::filesystem::create_directories(base + "/sources/sub");
  std::filesystem::copy_file(base + "/text.txt", base + "/sources/a.md");
  std::filesystem::copy_file(base + "/text.txt", base + "/sources/sub/b.cpp");
  run::Config whole = make("whole", 1, 1), parts = make("parts", 2, 1);
  whole.data.path = parts.data.path = "builtin";
  train(whole, Start::New);
  train(parts, Start::New, 10);
  std::ofstream(base + "/sources/a.md") << "edited";
  train(parts, Start::Resume, 5);
  std::filesystem::remove_all(base + "/sources");
  train(parts, Start::Resume);
  const double want = report::read_metrics(base + "/whole/metrics.jsonl").back().loss;
  EXPECT_NEAR(report::read_metrics(base + "/parts/metrics.jsonl").back().loss, want, 1e-4 * want);
  EXPECT_NE(
      test::thrown_message([&] { train(parts, Start::Overwrite); }).find("they are no longer at " + base + "/sources"),
      std::string::npos)
      << "anew is from the sources";
}

TEST_F(Run, SaysWhatChangedInTheDataOfACheckpoint) {
  const run::Config c = make("run", 1, 1);
  train(c, Start::New, 5);
  const auto refusal = [&](const run::Config& changed) {
    return test::thrown_message([&] { train(changed, Start::Resume); });
  };
  run::Config moved = c;
  moved.data.path = base + "/elsewhere/text.txt";
  EXPECT_NE(refusal(moved).find("no such file or folder: data.path = " + moved.data.path), std::string::npos);
  std::filesystem::create_directories(base + "/elsewhere");
  std::filesystem::copy_file(c.data.path, moved.data.path);
  train(moved, Start::Resume, 2);
  run::Config shorter = c;
  shorter.data.sequence = 20;
  EXPECT_NE(refusal(shorter).find("sequence was 24, now it is 20"), std::string::npos) << refusal(shorter);
  run::Config split = c;
  split.data.held_out = 0.1;
  EXPECT_NE(refusal(split).find("text.txt was "), std::string::npos) << refusal(split);
  std::ofstream(c.data.path, std::ios::app) << "one more line\n";
  const std::string message = refusal(c);
  EXPECT_NE(message.find("text.txt was "), std::string::npos) << message;
  EXPECT_NE(message.find("or start anew with --overwrite"), std::string::npos) << message;
}

TEST_F(Run, AFolderOfOneLargeFileAndASmallOneIsSplit) {
  std::filesystem::create_directories(base + "/folder");
  std::filesystem::copy_file(base + "/text.txt", base + "/folder/a.txt");
  std::ofstream(base + "/folder/b.txt") << "tiny";
  run::Config c = make("run", 1, 1);
  c.data.path = base + "/folder";
  c.training.steps = 3;
  train(c, Start::New);
  EXPECT_TRUE(report::read_metrics(c.run.folder + "/metrics.jsonl").back().eval_loss.has_value());
  c.data.held_out = 0.001;  // 15 tokens, less than a sample
  const std::string message = test::thrown_message([&] { train(c, Start::Overwrite); });
  EXPECT_NE(message.find("[data] the held-out part must hold a sequence"), std::string::npos) << message;
  EXPECT_NE(message.find("raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0"),
            std::string::npos)
      << message;
}

TEST_F(Run, SaysWhatIsWrongWithTheData) {
  run::Config c = make("run", 2, 1);
  c.data.path = base + "/nothing.txt";
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("nothing.txt"), std::string::npos);
  std::ofstream(base + "/short.txt") << "short";
  c.data.path = base + "/short.txt";
  c.data.held_out = 0;
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("25"), std::string::npos);
  c = make("run", 2, 1);
  c.data.sequence = 33;
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("got 33 of 32"), std::string::npos);
  c = make("run", 2, 1);
  c.model.vocabulary = 100;
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("got 100, tokenizer 257"), std::string::npos);
}

}  // namespace
}  // namespace colossal::train::trainer_test
