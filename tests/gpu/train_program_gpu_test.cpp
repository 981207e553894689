// `colossal train` with processes as ranks on CUDA devices. It must give the losses of the CPU under every layout.
// Ranks that share a GPU exchange data through host memory; ranks with one GPU each use NCCL.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "dist/train_program.h"

namespace colossal::test::train_program_gpu_test {
namespace {

class TrainProgramOnGpu : public TrainProgram {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
    TrainProgram::SetUp();
  }
};

TEST_F(TrainProgramOnGpu, EqualsTheLossesOfTheCpuUnderEveryLayout) {
  const Finished on_cpu = run(train());
  ASSERT_EQ(on_cpu.status, 0) << on_cpu.output;
  const auto want = losses();
  EXPECT_LT(want.back(), want.front());
  const std::vector<Words> layouts{{},
                                   {"--training.accumulate=2", "--memory.recompute=block"},
                                   {"--parallel.data=2"},
                                   {"--parallel.data=2", "--parallel.zero=1"},
                                   {"--parallel.data=2", "--parallel.zero=3"},
                                   {"--parallel.tensor=2"},
                                   {"--parallel.tensor={size=2,sequence=true}"},
                                   {"--parallel.tensor={size=4,mode=\"2d\"}"},
                                   {"--parallel.sequence={size=2,mode=\"ring\"}"},
                                   {"--parallel.sequence={size=4,mode=\"usp\",ulysses=2}"},
                                   {"--parallel.pipeline={size=2,micro_batches=2}"},
                                   {"--parallel.data=2", "--parallel.tensor=2", "--parallel.zero=2"}};
  for (Words flags : layouts) {
    SCOPED_TRACE(flags.empty() ? "one rank" : flags.front());
    flags.insert(flags.end(), {"--run.device=cuda", "--overwrite"});
    const Finished outcome = run(train(flags));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    expect_same_curve(losses(), want);
    expect_all_is_saved();
  }
}

TEST_F(TrainProgramOnGpu, ResumesFromACheckpointOfTheCpu) {
  ASSERT_EQ(run(train()).status, 0);
  const auto want = losses();
  const Finished resumed = run(train({"--run.device=cuda", "--resume-from", "8"}));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  expect_same_curve(losses(), want);
}

}  // namespace
}  // namespace colossal::test::train_program_gpu_test
