// A step that is refused, because it needs more than memory.device or its gradient is not finite, does not cost the
// steps before it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "colossal/base/bytes.h"
#include "colossal/nn/forward_context.h"
#include "colossal/train/step_rule.h"
#include "support/thrown_message.h"
#include "train/whole_runs.h"

namespace colossal::train::refused_steps_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// One update by one batch. The loss of the step of that number is not finite, so the engine refuses it.
class LoseOne : public OneUpdate {
 public:
  explicit LoseOne(int64_t step) : step_(step) {}
  StepOutcome step(Engine& engine, const NextBatch& next) override {
    if (engine.steps_done() + 1 < step_) return OneUpdate::step(engine, next);
    const tensor::Batch batch = next();
    const run::Objective& objective = engine.objective();
    engine.zero_grad();
    engine.train_step(batch, objective.weight(batch),
                      [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
                        return objective.loss(model, end, step) * std::numeric_limits<double>::quiet_NaN();
                      });
    return {.loss = 0, .result = engine.step()};
  }

 private:
  int64_t step_;
};

/// Trains until a step is refused. Returns the message.
std::string refusal(const run::Config& config, int64_t refused = 0) {
  return test::thrown_message([&] {
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      TrainerOptions options;
      if (refused > 0)
        options.program.objectives.at("next-token").step_rule = [=](Engine&, const auto&, const auto&) {
          return std::make_unique<LoseOne>(refused);
        };
      Trainer(world, config, options).run();
    });
  });
}

TEST_F(Run, KeepsTheStepsBeforeARefusedOne) {
  const auto whole = train(make("whole", 2, 1), Start::New);
  const run::Config parts = make("parts", 2, 1);  // with checkpoints after 5 and 10 steps
  EXPECT_THAT(refusal(parts, 8), AllOf(HasSubstr("the gradient of step 8 is not finite"),
                                       HasSubstr("step 7 is saved: change what the message names")));
  EXPECT_EQ(steps_in(parts).back(), 7);
  const auto resumed = train(parts, Start::Resume);  // the batch of step 8 comes again
  for (const auto& [name, value] : whole) EXPECT_TRUE(at::equal(value, resumed.at(name))) << name;
}

TEST_F(Run, StartsAgainAfterABudgetThatWasTooSmall) {
  run::Config config = make("run", 2, 1);
  config.training.steps = 2;
  config.optimizer.warmup_steps = 1;
  config.parallel.zero = 3;
  config.parallel.chunk_mib = 0.01;
  config.memory.device = int64_t{64} << 10;
  const std::string message = refusal(config);
  const std::string begin = "[memory] device must be at least ";
  ASSERT_THAT(message, AllOf(StartsWith(begin), HasSubstr(": got 64KiB; ")));
  EXPECT_TRUE(steps_in(config).empty()) << "there is nothing to continue from";
  const std::string least = message.substr(begin.size());
  config.memory.device = parse_bytes(least.substr(0, least.find(':'))).value();
  train(config, Start::New);
  EXPECT_EQ(steps_in(config).back(), 2);
}

}  // namespace
}  // namespace colossal::train::refused_steps_test
