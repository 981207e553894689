// The logs and records of stalls in a run, and the work of a run that is not a stall.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "colossal/base/file.h"
#include "colossal/comm/decorators/decorator.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/step_measures.h"
#include "colossal/train/trainer.h"

namespace colossal::train::stall_records_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A world that records the announced work of its ranks, and reports stalls when the test triggers them.
class Recording : public comm::WorldDecorator {
 public:
  using WorldDecorator::WorldDecorator;
  std::shared_ptr<void> busy(const std::string& what) override {
    whats.push_back(what);
    return WorldDecorator::busy(what);
  }
  void on_stall(std::function<void(const comm::Stall&)> listener) override { tell = std::move(listener); }
  std::vector<std::string> whats;
  std::function<void(const comm::Stall&)> tell;
};

class Stalls : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/stalls-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(base);
    std::filesystem::create_directories(base);
  }
  std::string base;
};

TEST_F(Stalls, LogAndSumTheirSeconds) {
  comm::run_ranks(1, [&](comm::World& world) {
    Recording recording(world);
    const Log log({.screen = LogLevel::kError, .file = base + "/log.txt"});
    {
      StallRecords records(recording, log);
      EXPECT_EQ(records.take_seconds(), 0);
      recording.tell({"rank 1 is late", true, false, 10});
      EXPECT_EQ(records.take_seconds(), 0) << "it is not over";
      recording.tell({"went on after 12 s", true, true, 12});
      recording.tell({"went on elsewhere", false, true, 2});
      EXPECT_EQ(records.take_seconds(), 14);
      EXPECT_EQ(records.take_seconds(), 0);
    }
    EXPECT_FALSE(recording.tell) << "nobody listens any more";
  });
  const std::string written = read_file(base + "/log.txt", 1 << 20);
  EXPECT_THAT(written, HasSubstr("warning  waiting: rank 1 is late\n"));
  EXPECT_THAT(written, HasSubstr("warning  waiting: went on after 12 s\n"));
  EXPECT_THAT(written, HasSubstr("debug  waiting: went on elsewhere\n"));
}

TEST_F(Stalls, ExcludeAnnouncedWorkOfARank) {
  {
    std::ofstream text(base + "/text.txt");
    for (int i = 0; i < 100; ++i) text << "line " << i << " of a text\n";
  }
  run::Config c;
  c.run.folder = base + "/run";
  c.run.device = "cpu";
  c.run.matmul = "mkl";
  c.model = {.name = "gpt2-tiny", .hidden = 32, .layers = 1, .heads = 4, .positions = 32};
  c.data.path = base + "/text.txt";
  c.data.sequence = 24;
  c.parallel.data = 2;
  c.training = {.steps = 1, .batch_size = 2, .evaluate_batches = 0};
  c.optimizer.warmup_steps = 0;
  for (const Start start : {Start::New, Start::Resume}) {
    std::mutex mutex;
    std::vector<std::string> whats;
    comm::run_ranks(2, [&](comm::World& world) {
      Recording recording(world);
      Trainer trainer(recording, c, {.start = start});
      trainer.run();
      const std::lock_guard lock(mutex);
      if (world.rank() == 1) whats = recording.whats;
    });
    if (start == Start::New)
      EXPECT_THAT(whats, ElementsAre("opening the data", "comparing the weights of ranks", "saving a checkpoint"));
    else
      EXPECT_THAT(whats, ElementsAre("opening the data", "reading a checkpoint in " + base + "/run/checkpoints",
                                     "comparing the weights of ranks"));
  }
}

}  // namespace
}  // namespace colossal::train::stall_records_test
