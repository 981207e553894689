// ZeRO against one process: the same losses, gradients and parameters for every sharding, under every other
// parallelism.
#include <gtest/gtest.h>

#include "colossal/models/registry.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::zero_parity_test {
namespace {

using Zero = testing::TestWithParam<int64_t>;

ParityCase case_of(int64_t zero, int data) {
  ParityCase c{.shape = tiny_gpt2(), .data = data, .batch = data % 3 == 0 ? 6 : 8, .clip = 0.5};
  c.zero = zero;
  return c;
}

TEST_P(Zero, EqualsOneProcessWithAnyNumberOfReplicas) {
  for (const int data : {1, 2, 3, 4, 8}) check_parity(case_of(GetParam(), data));
}

TEST_P(Zero, AddsUpMicroBatches) {
  ParityCase c = case_of(GetParam(), 2);
  c.accumulate = 4;
  check_parity(c);
}

TEST_P(Zero, EqualsOneProcessWithRecomputation) {
  for (const char* recompute : {"selective", "block"}) {
    ParityCase c = case_of(GetParam(), 2);
    c.shape = tiny_llama();
    c.recompute = recompute;
    check_parity(c);
  }
}

TEST_P(Zero, EqualsOneProcessUnderEveryTensorMode) {
  for (const parallel::TensorConfig& tensor : tensor_modes()) {
    if (tensor.size > 9) continue;
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = case_of(GetParam(), 2);
    c.tensor = tensor;
    c.batch = 2 * tensor.size;
    c.steps = 3;
    check_parity(c);
  }
}

TEST_P(Zero, EqualsOneProcessInPipelines) {
  for (const char* schedule : {"1f1b", "zero-bubble-h1", "zero-bubble-v", "chimera"}) {
    SCOPED_TRACE(schedule);
    ParityCase c = case_of(GetParam(), 2);
    c.shape.layers = 4;
    c.pipeline.size = 2;
    c.pipeline.schedule = schedule;
    c.pipeline.micro_batches = 4;
    c.steps = 4;
    check_parity(c);
  }
}

TEST_P(Zero, EqualsOneProcessWithinRunsOfReplicas) {
  ParityCase c = case_of(GetParam(), 4);
  c.zero_group = 2;
  check_parity(c);
}

TEST_P(Zero, FailsWithCollectivesOff) {
  ParityCase c = case_of(GetParam(), 2);
  c.collectives_off = true;
  EXPECT_THROW(check_parity(c), ParityError);
}

INSTANTIATE_TEST_SUITE_P(Stages, Zero, testing::Values(1, 2, 3));

TEST(Zero3, EqualsOneProcessForBlocksOfEveryVariant) {
  for (const models::ModelShape& shape : {tiny_mixed(), tiny_projected()}) {
    ParityCase c = case_of(3, 2);
    c.shape = shape;
    c.recompute = "block";
    c.steps = 3;
    EXPECT_NO_THROW(check_parity(c)) << shape.architecture->name;
  }
}

TEST(Zero3, KeepsParametersBetweenForwardAndBackward) {
  ParityCase c = case_of(3, 2);
  c.reshard_after_forward = false;
  check_parity(c);
}

}  // namespace
}  // namespace colossal::test::zero_parity_test
