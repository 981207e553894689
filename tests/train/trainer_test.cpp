// Whole runs in a temporary folder: resuming is bitwise, layouts can change in between, nothing starts over a finished run unasked.
#include "colossal/train/trainer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/metrics.h"
#include "support/ranks_values.h"
#include "support/tolerance.h"

namespace colossal::train {
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

  Config make(const std::string& folder, int64_t data, int64_t tensor) const {
    Config c;
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
  std::map<std::string, at::Tensor> train(const Config& c, Start start, int64_t stop_after = 0) const {
    std::map<std::string, at::Tensor> parameters;
    std::mutex mutex;
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      TrainerOptions options{.start = start, .builtin_data = base + "/sources"};
      options.stop_requested = [&] { return stop_after > 0 && world.rank() == 0 && ++steps >= stop_after; };
      Trainer trainer(world, c, options);
      EXPECT_EQ(trainer.run(), stop_after == 0);
      trainer.write_report("sample");
      const std::lock_guard lock(mutex);
      if (world.rank() == 0)
        for (const nn::Parameter& p : trainer.engine().parameters()) parameters[p.name] = p.value.detach().clone();
    });
    return parameters;
  }
  std::string base;
};

TEST_F(Run, ResumeIsBitwise) {
  for (const auto& [data, tensor] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    const std::string tag = concat(data, "x", tensor);
    const auto whole = train(make("whole" + tag, data, tensor), Start::New);
    const Config parts = make("parts" + tag, data, tensor);
    train(parts, Start::New, 10);
    EXPECT_EQ(checkpoint::complete_steps(parts.run.folder + "/checkpoints").back(), 10);
    const auto resumed = train(parts, Start::Resume);
    for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, resumed.at(name))) << tag << " " << name;
    const auto a = read_metrics(base + "/whole" + tag + "/metrics.jsonl"), b = read_metrics(parts.run.folder + "/metrics.jsonl");
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
  const double want = read_metrics(base + "/whole/metrics.jsonl").back().loss;
  EXPECT_NEAR(read_metrics(base + "/parts/metrics.jsonl").back().loss, want, 1e-4 * want);  // fp32, 20 steps
}

TEST_F(Run, WritesItsFolder) {
  const Config c = make("run", 2, 1);
  train(c, Start::New);
  for (const char* file : {"/config.toml", "/metrics.jsonl", "/report.html", "/log-rank-0.txt", "/log-rank-1.txt"})
    EXPECT_TRUE(std::filesystem::exists(c.run.folder + file)) << file;
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints"), (std::vector<int64_t>{15, 20}));
  const auto metrics = read_metrics(c.run.folder + "/metrics.jsonl");
  EXPECT_TRUE(metrics.back().eval_loss.has_value());
  EXPECT_LT(metrics.back().loss, metrics.front().loss);
  EXPECT_GT(metrics.back().mfu, 0);
}

TEST_F(Run, ShowsItsPipeline) {
  Config c = make("run", 1, 1);
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
  Config c = make("run", 1, 1);
  train(c, Start::New);
  EXPECT_NE(test::thrown_message([&] { train(c, Start::New); }).find("--resume to go on from it, --overwrite to start anew"), std::string::npos);
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints").back(), 20);
  c.training.steps = 5;
  train(c, Start::Overwrite);
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints"), (std::vector<int64_t>{5}));
}

TEST_F(Run, RefusesTheCheckpointOfAForeignModel) {
  Config c = make("run", 1, 1);
  train(c, Start::New);
  c.model.layers = 3;
  const std::string message = test::thrown_message([&] { train(c, Start::Resume); });
  EXPECT_NE(message.find("model.blocks.2.mlp.up.weight"), std::string::npos) << message;
  EXPECT_EQ(checkpoint::complete_steps(c.run.folder + "/checkpoints").back(), 20);
}

TEST_F(Run, OnTheBuiltinTextGoesOnAfterThatWasEdited) {
  std::filesystem::create_directories(base + "/sources/sub");
  std::filesystem::copy_file(base + "/text.txt", base + "/sources/a.md");
  std::filesystem::copy_file(base + "/text.txt", base + "/sources/sub/b.cpp");
  Config whole = make("whole", 1, 1), parts = make("parts", 2, 1);
  whole.data.path = parts.data.path = "builtin";
  train(whole, Start::New);
  train(parts, Start::New, 10);
  std::ofstream(base + "/sources/a.md") << "edited";
  train(parts, Start::Resume, 5);
  std::filesystem::remove_all(base + "/sources");
  train(parts, Start::Resume);
  const double want = read_metrics(base + "/whole/metrics.jsonl").back().loss;
  EXPECT_NEAR(read_metrics(base + "/parts/metrics.jsonl").back().loss, want, 1e-4 * want);
  EXPECT_NE(test::thrown_message([&] { train(parts, Start::Overwrite); }).find("they are no longer at " + base + "/sources"), std::string::npos)
      << "anew is from the sources";
}

TEST_F(Run, SaysWhatChangedInTheDataOfACheckpoint) {
  const Config c = make("run", 1, 1);
  train(c, Start::New, 5);
  const auto refusal = [&](const Config& changed) { return test::thrown_message([&] { train(changed, Start::Resume); }); };
  Config moved = c;
  moved.data.path = base + "/elsewhere/text.txt";
  EXPECT_NE(refusal(moved).find("no such file or folder: data.path = " + moved.data.path), std::string::npos);
  std::filesystem::create_directories(base + "/elsewhere");
  std::filesystem::copy_file(c.data.path, moved.data.path);
  train(moved, Start::Resume, 2);
  Config shorter = c;
  shorter.data.sequence = 20;
  EXPECT_NE(refusal(shorter).find("sequence was 24, now it is 20"), std::string::npos) << refusal(shorter);
  Config split = c;
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
  Config c = make("run", 1, 1);
  c.data.path = base + "/folder";
  c.training.steps = 3;
  train(c, Start::New);
  EXPECT_TRUE(read_metrics(c.run.folder + "/metrics.jsonl").back().eval_loss.has_value());
  c.data.held_out = 0.001;  // 15 tokens, less than a sample
  const std::string message = test::thrown_message([&] { train(c, Start::Overwrite); });
  EXPECT_NE(message.find("[data] the held-out part must hold a sequence"), std::string::npos) << message;
  EXPECT_NE(message.find("raise data.held_out, lower data.sequence, or set training.evaluate_batches = 0"), std::string::npos) << message;
}

TEST_F(Run, SaysWhatIsWrongWithTheData) {
  Config c = make("run", 2, 1);
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
}  // namespace colossal::train
