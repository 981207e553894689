// Whole runs in a temporary folder, of a tiny model on a text.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/trainer.h"
#include "support/thrown_message.h"

namespace colossal::train {

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
    c.optimizer.epsilon = 1e-3;  // a key's bias has a gradient of rounding errors, which must not be a whole step
    return c;
  }

  /// Trains until `stop_after` steps (0 = to the end) and returns every parameter of rank 0.
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
      trainer.write_report({{.text = "sample"}});
      const std::lock_guard lock(mutex);
      if (world.rank() == 0)
        for (const nn::Parameter& p : trainer.engine().parameters()) parameters[p.name] = p.value.detach().clone();
    });
    return parameters;
  }
  /// Trains and dies after `steps` steps, as if killed: there is no cleanup.
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
      trainer.write_report({{.text = "sample"}});
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

}  // namespace colossal::train
