// Preference training takes no more memory from step to step.
#include <gtest/gtest.h>

#include <utility>

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

}  // namespace
}  // namespace colossal::align::steady_memory_test
