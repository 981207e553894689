// The least a model needs: counted without making it, never more than it really takes, and shared out as the layout
// says.
#include "colossal/train/memory_need.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/comm/run_ranks.h"
#include "colossal/models/registry.h"
#include "colossal/train/engine.h"
#include "support/ranks_values.h"

namespace colossal::train::memory_need_test {
namespace {

using testing::HasSubstr;

run::Config small(const std::string& model) {
  run::Config c;
  c.run.device = "cpu";
  c.model.name = model;
  return c;
}

TEST(MemoryNeed, IsLessThanAModelHasAndNotMuchLess) {
  for (const char* model : {"gpt2-tiny", "llama-tiny", "vit-tiny-cifar"}) {
    const run::Config c = small(model);
    const models::ModelShape shape = models::built_in().resolve(c.model, 257);
    const MemoryNeed need = least_memory(c, shape);
    comm::run_ranks(1, [&](comm::World& world) {
      const auto engine = initialize(world, c, shape);
      const double elements = static_cast<double>(engine->parameters().numel());
      double saved = 0;  // parameters and states
      for (const auto& tensor : engine->state().tensors) saved += static_cast<double>(tensor.value.nbytes());
      EXPECT_LE(need.elements, elements) << model;
      EXPECT_GT(need.elements, 0.7 * elements) << model;
      EXPECT_EQ(need.parameters, 4 * need.elements);
      EXPECT_EQ(need.gradients, 4 * need.elements);
      EXPECT_LE(need.parameters + need.states, saved) << model;
      EXPECT_GT(need.parameters + need.states, 0.7 * saved) << model;
    });
  }
}

TEST(MemoryNeed, FollowsZeroPrecisionAndOptimizer) {
  run::Config c = small("gpt2-tiny");
  const models::ModelShape shape = models::built_in().resolve(c.model, 257);
  const double n = least_memory(c, shape).elements;
  const auto figures = [&] {
    const MemoryNeed need = least_memory(c, shape);
    return std::vector<double>{need.parameters / n, need.gradients / n, need.states / n};
  };
  c.parallel.data = 4;
  EXPECT_THAT(figures(), testing::ElementsAre(16, 16, 32));
  c.parallel.zero = 1;
  EXPECT_THAT(figures(), testing::ElementsAre(16, 16, 8));
  c.parallel.zero = 2;
  EXPECT_THAT(figures(), testing::ElementsAre(16, 4, 8));
  c.parallel.zero = 3;
  EXPECT_THAT(figures(), testing::ElementsAre(4, 4, 8));
  c.parallel.zero_sharers = 2;
  EXPECT_THAT(figures(), testing::ElementsAre(8, 8, 16));
  c.precision.mode = "bf16";
  EXPECT_THAT(figures(), testing::ElementsAre(4, 4, 24));
  c.precision.masters = false;
  EXPECT_THAT(figures(), testing::ElementsAre(4, 4, 8));
  c.optimizer.name = "lion";
  EXPECT_THAT(figures(), testing::ElementsAre(4, 4, 4));
}

TEST(MemoryNeed, OfSizesBeyondAllNumbersIsFinite) {
  models::ModelShape shape = models::built_in().resolve(small("llama-tiny").model, 257);
  shape.layers = shape.hidden = shape.ffn = shape.vocabulary = (int64_t{1} << 40) - 1;
  EXPECT_GT(least_memory(small("llama-tiny"), shape).total(), 1e36);
  EXPECT_TRUE(std::isfinite(least_memory(small("llama-tiny"), shape).total()));
}

TEST(MemoryNeed, RefusesWhatIsCertainNotToFit) {
  run::Config c = small("gpt2-tiny");
  c.parallel.data = 4;
  const models::ModelShape shape = models::built_in().resolve(c.model, 257);
  const double need = least_memory(c, shape).total();
  check_memory(c, shape, at::kCPU, 4, need);
  check_memory(c, shape, at::kCPU, 2, need / 2);  // half of the ranks are on another machine
  check_memory(c, shape, at::kCPU, 4, 0);         // a machine that does not say what it has
  check_memory(c, shape, at::kCUDA, 4, 1);
  const std::string message = test::thrown_message([&] { check_memory(c, shape, at::kCPU, 4, need - 1); });
  EXPECT_THAT(message, HasSubstr("[model] a model of 4 layers, hidden 128 and vocabulary 257"));
  EXPECT_THAT(message, HasSubstr("parameters 12."));
  EXPECT_THAT(message, HasSubstr("states of adamw 25"));
  EXPECT_THAT(message, HasSubstr("parallel.zero = 3"));
  EXPECT_GT(usable_memory(), 64 << 20);
}

}  // namespace
}  // namespace colossal::train::memory_need_test
