// Preference training takes no more memory from step to step.
#include <gtest/gtest.h>

#include "align/preference_runs.h"
#include "colossal/memory/host_memory.h"

namespace colossal::align::steady_memory_test {
namespace {

class PreferenceMemory : public PreferenceRuns {};

TEST_F(PreferenceMemory, DoesNotGrowOverSteps) {
  memory::keep_host_memory();
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, kto(), std::vector<std::string>{"--adapter.kind=lora"}}) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {"--training.steps=1000", "--data.packing=false"});
    const run::Config c = config("steady", all);
    comm::run_ranks(1, [&](comm::World& world) {
      run::RunData data = run::open_data(c, program(), "", 0, at::kCPU);
      const train::RunModels models = train::models_of(c, data);
      const auto engine = train::initialize(world, c, models, at::kCPU);
      const auto rule = models.make_rule(*engine);
      const tensor::Batch batch = data.training->next();
      const auto steps = [&](int count) {
        for (int i = 0; i < count; ++i) rule->step(*engine, [&] { return batch; });
      };
      steps(10);
      const memory::HostMemory warm = memory::host_memory();
      EXPECT_GT(warm.used_bytes, 0u);
      steps(200);
      const memory::HostMemory after = memory::host_memory();
      EXPECT_EQ(after.used_bytes, warm.used_bytes) << testing::PrintToString(flags);
      EXPECT_EQ(after.system_requests, warm.system_requests) << testing::PrintToString(flags);
    });
  }
}

}  // namespace
}  // namespace colossal::align::steady_memory_test
