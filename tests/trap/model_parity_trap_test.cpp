// The parity driver with ranks on trap devices, which exchange through the host: whole models, every way to spread them.
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "support/parity.h"
#include "support/tolerance.h"
#include "support/trap_device.h"

namespace colossal::test::model_parity_trap_test {
namespace {

class ModelParityOnTrap : public testing::TestWithParam<ParityCase> {
 protected:
  static void SetUpTestSuite() { trap_device(); }
};

std::vector<ParityCase> cases() {
  std::vector<ParityCase> all;
  for (const models::ModelShape& shape : {tiny_gpt2(), tiny_llama(), tiny_vit(), tiny_bert()})
    all.push_back({.shape = shape, .steps = 3, .clip = 0.5});
  all.push_back({.shape = tiny_gpt2(), .accumulate = 2, .steps = 3, .recompute = "block"});
  all.push_back({.shape = tiny_llama(), .accumulate = 4, .steps = 3, .recompute = "selective"});
  for (const int64_t zero : {0, 1, 2, 3}) all.push_back({.shape = tiny_gpt2(), .data = 2, .steps = 3, .zero = zero});
  for (const parallel::TensorConfig& mode : tensor_modes())
    if (mode.size <= 4 && mode.mode == "1d") all.push_back({.shape = tiny_llama(), .tensor = mode, .steps = 2});
  all.push_back({.shape = tiny_gpt2(), .tensor = {.size = 8, .mode = "3d"}, .steps = 2});
  models::ModelShape deep = tiny_gpt2();
  deep.layers = 4;
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble-v", "chimera"})
    all.push_back({.shape = deep, .pipeline = {.size = 2, .schedule = schedule, .micro_batches = 2}, .steps = 2});
  all.push_back({.shape = tiny_llama(),
                 .data = 2,
                 .tensor = {.size = 2},
                 .pipeline = {.size = 2, .micro_batches = 2},
                 .steps = 2,
                 .zero = 1});
  return all;
}

/// For names of tests.
std::string name_of_case(const ParityCase& c) {
  std::string name = concat(c.shape.architecture->name, "_", name_of(c.tensor), "_data", c.data, "_zero", c.zero, "_",
                            c.pipeline.size > 1 ? c.pipeline.schedule : "", "_", c.recompute, "_", c.accumulate);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

TEST_P(ModelParityOnTrap, EqualsTheCpu) {
  ParityCase c = GetParam();
  c.device = "trap";
  EXPECT_NO_THROW(check_parity(c));
}
INSTANTIATE_TEST_SUITE_P(Layouts, ModelParityOnTrap, testing::ValuesIn(cases()),
                         [](const auto& info) { return name_of_case(info.param); });

}  // namespace
}  // namespace colossal::test::model_parity_trap_test
