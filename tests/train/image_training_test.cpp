// Whole runs of a tiny ViT on images in CIFAR-10's format: it learns, resumes bitwise, and two replicas equal one.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/report/metrics.h"
#include "colossal/train/trainer.h"
#include "support/cifar_folder.h"
#include "support/steps.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::image_training_test {
namespace {

class ImageRun : public testing::Test {
 protected:
  void SetUp() override {
    base = testing::TempDir() + "/image-run-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(base);
    std::filesystem::create_directories(base + "/cifar");
    test::write_gzip(base + "/cifar/data_batch_1.bin.gz", test::cifar_records(230));
    test::write_plain(base + "/cifar/test_batch.bin", test::cifar_records(40, 1000));
  }
  void TearDown() override { std::filesystem::remove_all(base); }

  run::Config make(const std::string& folder, int64_t data, int64_t tensor) const {
    run::Config c;
    c.run.folder = base + "/" + folder;
    c.run.device = "cpu";
    c.run.matmul = "mkl";
    c.model = {.name = "vit-tiny-cifar",
               .hidden = 32,
               .layers = 2,
               .heads = 4,
               .dropout = 0.1,
               .own = models::own_keys({"patch=8"})};
    c.data.path = base + "/cifar";
    c.parallel.data = data;
    c.parallel.tensor.size = tensor;
    c.training = {.steps = 24, .batch_size = 20, .accumulate = 2, .evaluate_every = 12, .evaluate_batches = 2};
    c.optimizer.learning_rate = 4e-3;
    c.optimizer.warmup_steps = 3;
    c.optimizer.epsilon = 1e-3;  // a key's bias has a gradient of rounding errors, which must not be a whole step
    return c;
  }

  std::map<std::string, at::Tensor> train(const run::Config& c, Start start, int64_t stop_after = 0) const {
    std::map<std::string, at::Tensor> parameters;
    std::mutex mutex;
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      TrainerOptions options{.start = start};
      options.stop_requested = [&] { return stop_after > 0 && world.rank() == 0 && ++steps >= stop_after; };
      Trainer trainer(world, c, options);
      EXPECT_EQ(trainer.tokenizer(), nullptr);
      EXPECT_EQ(trainer.run(), stop_after == 0);
      trainer.write_report();
      const std::lock_guard lock(mutex);
      if (world.rank() == 0)
        for (const nn::Parameter& p : trainer.engine().parameters()) parameters[p.name] = p.value.detach().clone();
    });
    return parameters;
  }
  report::RecordedSteps metrics(const std::string& folder) const {
    return report::read_metrics(base + "/" + folder + "/metrics.jsonl");
  }
  std::string refusal(const run::Config& c) const {
    return test::thrown_message([&] { train(c, Start::New); });
  }
  std::string base;
};

TEST_F(ImageRun, Learns) {
  run::Config c = make("run", 1, 1);
  c.training.steps = 120;
  c.training.evaluate_every = 60;
  c.data.own = run::data_keys({"augment=false"});  // the height of the band is the class
  c.optimizer.epsilon = 1e-8;
  train(c, Start::New);
  const auto steps = metrics("run");
  EXPECT_NEAR(test::first(steps, "loss"), std::log(10.0), 0.4);
  EXPECT_LT(test::last(steps, "loss"), 0.5 * test::first(steps, "loss"));
  EXPECT_GT(test::last(steps, "accuracy"), 0.5);  // 0.1 by chance
  EXPECT_LT(test::last(steps, "eval_loss"), *steps.value("eval_loss", 59));
  EXPECT_FALSE(steps.find("perplexity"));
  EXPECT_EQ(test::last(steps, "tokens"), 20 * 17);
  EXPECT_GT(test::last(steps, "mfu"), 0);
  const std::string page = read_file(c.run.folder + "/report.html", 1 << 24);
  EXPECT_NE(page.find("Held-out accuracy"), std::string::npos);
}

TEST_F(ImageRun, EvaluatesEachImageOnce) {
  const auto evaluated = [&](const std::string& folder, int64_t batches) {
    run::Config c = make(folder, 2, 1);
    c.training.steps = 3;
    c.training.batch_size = 24;  // the second batch has 16 of the 40 test images
    c.training.evaluate_batches = batches;
    train(c, Start::New);
    return metrics(folder);
  };
  const report::RecordedSteps all = evaluated("all", 2), more = evaluated("more", 5);
  const double accuracy = test::last(all, "accuracy");
  EXPECT_EQ(test::last(more, "eval_loss"), test::last(all, "eval_loss"));
  EXPECT_EQ(test::last(more, "accuracy"), accuracy);
  EXPECT_NEAR(40 * accuracy, std::round(40 * accuracy), 1e-9);  // a fraction of 40 images, not of 48 rows
}

TEST_F(ImageRun, ResumesBitwise) {
  const auto whole = train(make("whole", 1, 2), Start::New);
  const run::Config parts = make("parts", 1, 2);
  train(parts, Start::New, 13);  // within the second epoch, whose first batch has the last samples of the first one
  const auto resumed = train(parts, Start::Resume);
  for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, resumed.at(name))) << name;
  const auto a = metrics("whole"), b = metrics("parts");
  ASSERT_EQ(a.size(), 24u);
  ASSERT_EQ(b.size(), 24u);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a.value("loss", i), b.value("loss", i)) << "step " << i + 1;
  EXPECT_EQ(test::last(a, "accuracy"), test::last(b, "accuracy"));
}

TEST_F(ImageRun, EqualsOneReplicaWithTwo) {
  const auto one = train(make("one", 1, 1), Start::New), two = train(make("two", 2, 1), Start::New);
  for (const auto& [name, value] : one) test::expect_close(two.at(name), value, 1 << 16, name);
  const auto a = metrics("one"), b = metrics("two");
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(*a.value("loss", i), *b.value("loss", i), 1e-4) << "step " << i + 1;  // fp32
  // One of 40 images may be on the border between two classes.
  EXPECT_NEAR(test::last(a, "accuracy"), test::last(b, "accuracy"), 0.026);
}

TEST_F(ImageRun, ReportsInvalidData) {
  run::Config c = make("run", 2, 1);
  c.data.path = "builtin";
  EXPECT_NE(refusal(c).find("no such folder of images: data.path = builtin; get CIFAR-10's binary version from "
                            "https://www.cs.toronto.edu"),
            std::string::npos);
  c = make("run", 1, 1);
  c.model.own = models::own_keys({"patch=8", "side=64"});
  EXPECT_NE(refusal(c).find("got 3 and 64, images have 3 and 32; set model.channels and model.side"),
            std::string::npos);
  c = make("run", 1, 1);
  c.model.own = models::own_keys({"patch=8", "classes=9"});
  EXPECT_NE(refusal(c).find("classes must hold those of the images: got 9, images of 10; set model.classes"),
            std::string::npos);
  c = make("run", 1, 1);
  std::filesystem::remove(base + "/cifar/test_batch.bin");
  EXPECT_NE(refusal(c).find("holds no test_batch*.bin"), std::string::npos);
  c.training.evaluate_batches = 0;
  c.training.steps = 3;
  EXPECT_EQ(refusal(c), "");
  EXPECT_FALSE(metrics("run").find("accuracy"));
}

}  // namespace
}  // namespace colossal::train::image_training_test
