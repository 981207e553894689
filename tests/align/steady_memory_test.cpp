// Preference training and learning from answers take no more memory from step to step.
#include <gmock/gmock.h>
#include <malloc.h>

#include <utility>

#include "align/policy_runs.h"
#include "align/preference_runs.h"
#include "colossal/memory/account.h"

namespace colossal::align::steady_memory_test {
namespace {

class PreferenceMemory : public PreferenceRuns {};

TEST_F(PreferenceMemory, DoesNotGrowOverSteps) {
  for (const auto& [flags, count] :
       std::vector<std::pair<std::vector<std::string>, int>>{{{}, 200}, {kto(), 30}, {{"--adapter.kind=lora"}, 30}}) {
    const std::vector<std::string> own{"--model.layers=1", "--training.steps=1000", "--training.batch_size=2"};
    const run::Config c = config("steady", test::joined(own, flags));
    comm::run_ranks(1, [&](comm::World& world) {
      run::RunData data = run::open_data(c, program(), "", 0, at::kCPU);
      memory::Account account;
      const train::RunModels models = train::models_of(c, data);
      const auto engine = train::initialize(world, c, models, at::kCPU);
      const auto rule = models.make_rule(*engine);
      const tensor::Batch batch = data.training->next();
      const auto steps = [&](int more) {
        for (int i = 0; i < more; ++i) rule->step(*engine, [&] { return batch; });
      };
      steps(3);
      account.reset_peaks();
      steps(1);
      const memory::Account::Usage warm = account.usage();
      EXPECT_GT(warm.total, 0);
      steps(count);
      EXPECT_EQ(account.usage().total, warm.total) << testing::PrintToString(flags);
      EXPECT_EQ(account.usage().peak_total, warm.peak_total) << testing::PrintToString(flags);
    });
  }
}

class PolicyMemory : public PolicyRuns {};

// The answers of a step and their scores are kept until it ends. Of each step the run keeps its metrics, in 1 KiB.
TEST_F(PolicyMemory, DoesNotGrowOverSteps) {
  const std::vector<std::string> flags{
      "--model.layers=1",        "--training.steps=200",   "--training.batch_size=8", "--rollout.prompts=2",
      "--rollout.answers=4",     "--rollout.max_tokens=3", "--rollout.keep_steps=2",  "--rollout.ahead=1",
      "--alignment.entropy=1e-9"};  // so that updates leave out no rows
  const run::Config c = policy("steady", flags);
  comm::run_ranks(1, [&](comm::World& world) {
    memory::Account account;
    memory::Account::Usage warm;
    size_t bytes = 0;
    int steps = 0;
    train::TrainerOptions options{.start = train::Start::New, .program = program()};
    options.stop_requested = [&] {
      if (++steps == 9) account.reset_peaks();
      if (steps == 10) warm = account.usage(), bytes = mallinfo2().uordblks;
      if (steps == 199) {
        EXPECT_EQ(account.usage().total, warm.total);
        EXPECT_EQ(account.usage().peak_total, warm.peak_total);
        EXPECT_LT(mallinfo2().uordblks, bytes + (189 << 11)) << "a step with its answers has 4 KiB";
      }
      return false;
    };
    train::Trainer(world, c, options).run();
    EXPECT_GT(warm.total, 0);
    EXPECT_EQ(steps, 200);
  });
  EXPECT_THAT(rollout_steps(c.run.folder + "/rollouts"), testing::ElementsAre(199, 200));
}

}  // namespace
}  // namespace colossal::align::steady_memory_test
