// The parity driver with ranks on CUDA devices, which they may share: then they exchange through host memory. The
// reference is the CPU's.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::model_parity_gpu_test {
namespace {

struct Layout {
  int data, tensor;
};

class ModelParityOnGpu : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  }
};

TEST_P(ModelParityOnGpu, EqualsSingleProcess) {
  for (const models::ModelShape& shape : {tiny_gpt2(), tiny_llama(), tiny_vit()}) {
    ParityCase c{.shape = shape, .data = GetParam().data, .tensor = {.size = GetParam().tensor}, .device = "cuda"};
    EXPECT_NO_THROW(check_parity(c));
    if (GetParam().data * GetParam().tensor == 1) continue;
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), ParityError);
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, ModelParityOnGpu,
                         testing::Values(Layout{1, 1}, Layout{2, 1}, Layout{1, 2}, Layout{2, 2}));

}  // namespace
}  // namespace colossal::test::model_parity_gpu_test
