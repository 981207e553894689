// A thousand steps of fp16 with repeated overflows of gradients, compared with an independent implementation of the
// steps.
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/module_training.h"

namespace colossal::train::fp16_steps_test {
namespace {

constexpr int64_t kSize = 13, kSteps = 1000, kGrowth = 20;
constexpr double kFirstScale = 4096;

/// The loss is the mean over ranks and micro-batches of sum((w - x)^2) / 2. Its gradient w - x depends on all earlier
/// steps.
struct Point : torch::nn::Module {
  Point() {
    w = register_parameter("w", at::zeros({kSize}));
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < kSize; ++i) w[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  }
  at::Tensor w;
};

/// Returns the target of element i in a micro-batch of one rank. In some steps, on one rank, it is so large that the
/// gradient overflows unless the scale is small.
float target(int64_t step, int64_t part, int64_t i) {
  if (step % 31 == 7 && part == step % 2 && i == step % kSize) return 100;
  return static_cast<float>(std::cos(static_cast<double>(17 * step + 5 * part + i)));
}

float half(float x) { return static_cast<float>(static_cast<c10::Half>(x)); }

run::Config config_of(int64_t data, int64_t zero, int64_t accumulate, const std::string& rule, double clip) {
  run::Config c;
  c.run.device = "cpu";
  c.parallel.data = data;
  c.parallel.zero = zero;
  c.precision.mode = "fp16";
  c.precision.loss_scale = kFirstScale;
  c.precision.loss_scale_growth = kGrowth;
  c.optimizer.name = rule;
  c.optimizer.learning_rate = 1.0 / 64;  // a power of two, so that no product with it rounds
  c.optimizer.weight_decay = 0;
  if (rule == "sgd") c.optimizer.momentum = 0;
  c.optimizer.schedule.name = "constant";
  c.optimizer.warmup_steps = 0;
  c.training.steps = kSteps;
  c.training.batch_size = data * accumulate;
  c.training.accumulate = accumulate;
  c.training.clip = clip;
  return c;
}

/// The master weights after each step, and whether it was skipped.
struct Course {
  std::vector<std::vector<float>> values;
  std::vector<bool> skipped;
};

/// The steps in scalar arithmetic, without code of the library.
Course by_hand(const run::Config& config) {
  const int64_t ranks = config.parallel.data, passes = config.training.accumulate;
  const double rate = config.optimizer.learning_rate;
  std::vector<float> w, m(kSize), v(kSize);
  for (int64_t i = 0; i < kSize; ++i) w.push_back(static_cast<float>(std::sin(static_cast<double>(i))));
  double scale = kFirstScale;
  int64_t good = 0, taken = 0;
  Course course;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto share = static_cast<float>(scale / static_cast<double>(ranks * passes));
    std::vector<float> g(kSize);
    double squares = 0;
    for (size_t i = 0; i < kSize; ++i) {
      for (int64_t pass = 0; pass < passes; ++pass) {
        float over_ranks = 0;
        for (int64_t rank = 0; rank < ranks; ++rank)  // the gradient of a parameter in fp16
          over_ranks += half(share * (half(w[i]) - target(step, pass * ranks + rank, static_cast<int64_t>(i))));
        // Ranks are summed in fp16, except if they send sums of micro-batches, which are fp32.
        g[i] += passes == 1 || config.parallel.zero >= 2 ? half(over_ranks) : over_ranks;
      }
      squares += static_cast<double>(g[i]) * g[i];
    }
    const double norm = std::sqrt(squares) / scale;
    course.skipped.push_back(!std::isfinite(norm));
    if (std::isfinite(norm)) {
      ++taken;
      const double factor =
          (config.training.clip > 0 && norm > config.training.clip ? config.training.clip / norm : 1) / scale;
      for (size_t i = 0; i < kSize; ++i) {
        const double gradient = g[i] * factor;
        if (config.optimizer.name == "sgd") {
          w[i] -= static_cast<float>(rate * gradient);
          continue;
        }
        m[i] = static_cast<float>(0.9 * m[i] + 0.1 * gradient);
        v[i] = static_cast<float>(0.95 * v[i] + 0.05 * gradient * gradient);
        const double mean = m[i] / (1 - std::pow(0.9, taken)), root = std::sqrt(v[i] / (1 - std::pow(0.95, taken)));
        w[i] -= static_cast<float>(rate * mean / (root + 1e-8));
      }
      if (++good == kGrowth) {
        scale *= 2;
        good = 0;
      }
    } else {
      scale /= 2;
      good = 0;
    }
    course.values.push_back(w);
  }
  return course;
}

/// Compares all steps; `tolerance` 0 = bitwise.
void expect_same_course(const run::Config& config, double tolerance) {
  const Course expected = by_hand(config);
  const int64_t ranks = config.parallel.data, passes = config.training.accumulate;
  comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
    Point module;
    const auto training = initialize(world, module, config);
    for (int64_t step = 0; step < kSteps; ++step) {
      training->zero_grad();
      for (int64_t pass = 0; pass < passes; ++pass) {
        at::Tensor x = at::empty({kSize});
        for (int64_t i = 0; i < kSize; ++i) x[i] = target(step, pass * ranks + world.rank(), i);
        training->backward((module.w.to(at::kFloat) - x).square().sum() / 2);
      }
      ASSERT_EQ(training->step().skipped, expected.skipped[static_cast<size_t>(step)]) << "step " << step;
      for (const memory::Shard& shard : training->store().shards())
        for (const memory::Piece& piece : shard.pieces())
          for (int64_t i = 0; i < piece.part.size; ++i) {
            const auto got = shard.lease()->values[piece.offset + i].item<float>();
            ASSERT_NEAR(got, expected.values[static_cast<size_t>(step)][static_cast<size_t>(piece.part.first + i)],
                        tolerance)
                << "step " << step << ", element " << piece.part.first + i << ", rank " << world.rank();
            ASSERT_EQ(shard.lease()->copy[piece.offset + i].item<float>(), half(got));
          }
    }
  });
}

struct Layout {
  int64_t data, zero, accumulate;
};

class Fp16Steps : public testing::TestWithParam<Layout> {};

TEST_P(Fp16Steps, EqualTheReferenceBitwiseForSgd) {
  const auto [data, zero, accumulate] = GetParam();
  expect_same_course(config_of(data, zero, accumulate, "sgd", 0), 0);
}

TEST_P(Fp16Steps, EqualTheReferenceForAdamWWithClipping) {
  const auto [data, zero, accumulate] = GetParam();
  expect_same_course(config_of(data, zero, accumulate, "adamw", 0.5), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Fp16Steps,
                         testing::Values(Layout{1, 0, 1}, Layout{2, 0, 1}, Layout{2, 3, 1}, Layout{2, 1, 2},
                                         Layout{2, 2, 2}),
                         [](const auto& info) {
                           const Layout& l = info.param;
                           return "Data" + std::to_string(l.data) + "Zero" + std::to_string(l.zero) + "Accumulate" +
                                  std::to_string(l.accumulate);
                         });

TEST(Fp16Steps, SkipOftenEnoughForTheTest) {
  const Course course = by_hand(config_of(2, 0, 1, "sgd", 0));
  const auto skipped = std::count(course.skipped.begin(), course.skipped.end(), true);
  EXPECT_GT(skipped, 20);
  EXPECT_LT(skipped, 200);
}

}  // namespace
}  // namespace colossal::train::fp16_steps_test
