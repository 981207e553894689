// Weights of micro-batches of a user-defined module: uneven micro-batches have the gradients of one whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/traffic.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::loss_weights_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kWidth = 6, kClasses = 5, kRows = 12, kSteps = 5;
constexpr std::array<int64_t, 4> kUneven{1, 4, 2, 5};  // rows of the micro-batches of two ranks, which are kRows

struct Classes : torch::nn::Module {
  Classes() {
    layer = register_module("layer", torch::nn::Linear(kWidth, kWidth));
    head = register_module("head", torch::nn::Linear(kWidth, kClasses));
    const at::NoGradGuard no_grad;  // no random generator, because modules of several ranks are made concurrently
    double phase = 0;
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.4).view(p.sizes()));
  }
  at::Tensor logits(const at::Tensor& x) { return head->forward(torch::tanh(layer->forward(x))); }
  torch::nn::Linear layer{nullptr}, head{nullptr};
};

/// The mean over `count` rows from `first` on. NaN, with gradients of zeros, if there are none.
at::Tensor loss_of(Classes& module, const ModuleTraining& training, int64_t step, int64_t first, int64_t count) {
  const at::Tensor x = at::arange(kRows * kWidth, at::kDouble).add(100.0 * static_cast<double>(step)).mul(0.37).sin();
  at::Tensor classes = at::full({kRows}, -100, at::kLong);  // ignored
  classes.narrow(0, first, count).copy_(at::arange(first, first + count).add(step).remainder(kClasses));
  const at::Tensor logits = module.logits(training.input(x.view({kRows, kWidth})));
  return torch::nll_loss_nd(
      torch::log_softmax(logits.to(logits.scalar_type() == at::kHalf ? at::kFloat : logits.scalar_type()), 1), classes);
}

run::Config config_of(int64_t ranks, int64_t zero, int64_t accumulate, const std::string& mode = "fp64") {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.parallel.chunk_mib = 0.0003;  // one or two layers per chunk
  config.precision.mode = mode;
  config.optimizer.learning_rate = 1e-2;
  config.optimizer.epsilon = 1e-3;  // otherwise rounding decides the direction of small gradients
  config.optimizer.warmup_steps = 0;
  config.training.batch_size = ranks * accumulate;
  config.training.accumulate = accumulate;
  config.training.steps = kSteps;
  config.training.clip = 0.05;  // below the norms of this test
  return config;
}

/// The weights, and the norm and the loss of each step. The loss is of one rank, or the weighted mean of all.
struct Course {
  std::vector<at::Tensor> values;
  std::vector<double> norms, losses;
  std::vector<bool> skipped;
};

using Batches = std::function<std::vector<std::pair<at::Tensor, double>>(Classes&, ModuleTraining&, int64_t step)>;

/// Trains with the losses and weights that `batches` returns.
Course course_of(comm::World& world, const run::Config& config, const Batches& batches) {
  Classes module;
  Course course;
  const auto training = initialize(world, module, config);
  for (int64_t step = 0; step < kSteps; ++step) {
    training->zero_grad();
    double weight = 0;
    for (const auto& [loss, of_loss] : batches(module, *training, step)) {
      training->backward(loss, of_loss);
      weight += of_loss;
    }
    const StepResult result = training->step();
    course.skipped.push_back(result.skipped);
    course.norms.push_back(result.gradient_norm);
    course.losses.push_back(training->mean(weight > 0 ? weight * training->loss() : 0) / training->mean(weight));
  }
  const at::NoGradGuard no_grad;
  for (const at::Tensor& p : module.parameters()) course.values.push_back(p.clone());
  training->end_pass();
  return course;
}

Course whole_batches(const std::string& clip_by) {
  Course course;
  comm::run_ranks(1, [&](comm::World& world) {
    run::Config config = config_of(1, 0, 1);
    config.training.clip_by = clip_by;
    course = course_of(world, config, [](Classes& module, ModuleTraining& training, int64_t step) {
      return std::vector{std::pair{loss_of(module, training, step, 0, kRows), 1.0}};
    });
  });
  return course;
}

/// Every rounding of a gradient changes a weight by at most learning_rate / epsilon = 10 times as much.
void expect_alike(const Course& got, const Course& want, const std::string& what) {
  for (size_t i = 0; i < want.values.size(); ++i)
    test::expect_within(got.values[i], want.values[i], 10 * kSteps * test::tolerance(want.values[i], kRows * kWidth),
                        what);
  for (size_t i = 0; i < want.norms.size(); ++i) {
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-12 * want.norms[i]) << what;
    EXPECT_NEAR(got.losses[i], want.losses[i], 1e-12 * want.losses[i]) << what;
  }
}

TEST(LossWeights, MakeUnevenMicroBatchesEqualOneBatch) {
  for (const std::string clip_by : {"norm", "largest", "value"}) {
    const Course want = whole_batches(clip_by);
    for (const int64_t zero : {0, 1, 2, 3})
      comm::run_ranks(2, [&, zero = zero](comm::World& world) {
        run::Config config = config_of(2, zero, 2);
        config.training.clip_by = clip_by;
        const Course got = course_of(world, config, [&](Classes& module, ModuleTraining& training, int64_t step) {
          std::vector<std::pair<at::Tensor, double>> losses;
          int64_t first = 0;
          for (size_t i = 0; i < kUneven.size(); ++i) {
            if (static_cast<int>(i) / 2 == world.rank())
              losses.emplace_back(loss_of(module, training, step, first, kUneven[i]), kUneven[i]);
            first += kUneven[i];
          }
          return losses;
        });
        expect_alike(got, want, concat(clip_by, ", zero ", zero, ", rank ", world.rank()));
      });
  }
}

TEST(LossWeights, LeaveMicroBatchesWithoutTokensOut) {
  const Course want = whole_batches("norm");
  comm::run_ranks(2, [&](comm::World& world) {
    const Course got =
        course_of(world, config_of(2, 3, 1), [&](Classes& module, ModuleTraining& training, int64_t step) {
          const bool has_all = step % 2 == world.rank();
          const at::Tensor loss = loss_of(module, training, step, 0, has_all ? kRows : 0);
          EXPECT_EQ(std::isnan(loss.item<double>()), !has_all);
          return std::vector{std::pair{loss, has_all ? kRows : 0.0}};
        });
    expect_alike(got, want, concat("rank ", world.rank()));
  });
}

TEST(LossWeights, CountRelativeToEachOtherOnly) {
  comm::run_ranks(2, [](comm::World& world) {
    const auto with = [&](const std::string& mode, double weight) {
      run::Config config = config_of(2, 2, 2, mode);
      if (mode == "fp16") config.precision.loss_scale = 1024;
      return course_of(world, config, [&](Classes& module, ModuleTraining& training, int64_t step) {
        std::vector<std::pair<at::Tensor, double>> losses;
        for (int64_t i = 0; i < 2; ++i)
          losses.emplace_back(loss_of(module, training, step, 3 * (2 * i + world.rank()), 3), weight);
        return losses;
      });
    };
    for (const std::string mode : {"fp64", "fp32", "bf16", "fp16"}) {
      const Course want = with(mode, 1);
      for (const double weight : {4.0, 64.0}) {  // powers of two scale without rounding
        const Course got = with(mode, weight);
        EXPECT_EQ(got.norms, want.norms) << mode << weight;
        EXPECT_EQ(got.losses, want.losses) << mode << weight;
        EXPECT_EQ(got.skipped, std::vector<bool>(kSteps, false)) << mode << weight;
        for (size_t i = 0; i < want.values.size(); ++i) test::expect_equal(got.values[i], want.values[i], mode);
      }
    }
  });
}

TEST(LossWeights, OverflowInFp16UntilTheFirstMeanIsKnown) {
  comm::run_ranks(2, [](comm::World& world) {
    run::Config config = config_of(2, 3, 1, "fp16");
    config.precision.loss_scale = 1 << 15;
    const Course course = course_of(world, config, [&](Classes& module, ModuleTraining& training, int64_t step) {
      return std::vector{std::pair{loss_of(module, training, step, 6 * world.rank(), 6), 4000.0 + 90 * world.rank()}};
    });
    EXPECT_EQ(course.skipped, (std::vector<bool>{true, false, false, false, false}));
  });
}

TEST(LossWeights, TravelWithTheNorm) {
  for (const std::string clip_by : {"norm", "largest"})
    comm::run_ranks(2, [&](comm::World& world) {
      run::Config config = config_of(2, 0, 1);
      config.training.clip_by = clip_by;
      Classes module;
      const auto training = initialize(world, module, config);
      training->zero_grad();
      training->backward(loss_of(module, *training, 0, 0, 4), 4);
      world.traffic().reset();
      training->step();
      EXPECT_EQ(world.traffic().total().calls, 1);
      EXPECT_EQ(world.traffic().total("", "all_reduce").elements, clip_by == "largest" ? 3 : 2);
    });
}

TEST(LossWeights, RefuseStepsWithoutTokensOnAllRanks) {
  comm::run_ranks(2, [](comm::World& world) {
    Classes module;
    const auto training = initialize(world, module, config_of(2, 3, 1));
    const auto pass = [&](double weight) {
      training->zero_grad();
      training->backward(loss_of(module, *training, 0, 0, 4), weight);
    };
    pass(0);
    EXPECT_EQ(test::thrown_message([&] { training->step(); }),
              "[training] the weights of a step's losses must have a finite sum above 0 over all ranks and "
              "micro-batches: got 0; leave out a step without any token on all ranks");
    EXPECT_TRUE(std::isnan(training->loss()));
    pass(std::numeric_limits<double>::max());
    EXPECT_THAT(test::thrown_message([&] { training->step(); }), HasSubstr("finite sum above 0"));
    EXPECT_EQ(training->steps_done(), 0);
    pass(world.rank());
    training->step();
    EXPECT_EQ(training->steps_done(), 1);
  });
}

TEST(LossWeights, RefuseWeightsThatAreNoNumbersOfTokens) {
  comm::run_ranks(1, [](comm::World& world) {
    Classes module;
    const auto training = initialize(world, module, config_of(1, 0, 1));
    training->zero_grad();
    for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
      EXPECT_THAT(test::thrown_message([&] { training->backward(loss_of(module, *training, 0, 0, 4), bad); }),
                  HasSubstr("[training] the weight of a loss must be a finite number of 0 or more: got "));
    training->backward(loss_of(module, *training, 0, 0, 4), 4);  // no micro-batch was counted
    training->step();
  });
}

}  // namespace
}  // namespace colossal::train::loss_weights_test
