// Elements that ranks send in a step of a drawing, against the formulas.
#include "colossal/diffusion/step_traffic.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/unet_parts.h"

namespace colossal::diffusion::step_traffic_test {
namespace {

// Levels of 64, 16 and 4 cells with 32, 64 and 64 features, of which the first two have transformers.
TEST(StepTraffic, CountsEachResnetOnceAndEachTransformerThreeTimes) {
  const models::ModelShape shape = models::built_in().resolve({.name = "sd-1.5-tiny"});
  const int64_t first = 64 * 32, second = 16 * 64, third = 4 * 64;
  EXPECT_EQ(models::unet_elements_summed(shape.own.as<models::UnetSizes>()),
            3 * (1 + 3) * first + 3 * (1 + 3) * second + (1 + 2 + 2 + 3) * third);
}

TEST(StepTraffic, EqualsTheFormula) {
  models::ModelShape shape = models::built_in().resolve({.name = "sd-1.5-tiny"});
  auto sizes = shape.own.as<models::UnetSizes>();
  sizes.height = 5;  // an odd side
  shape.own = sizes;
  shape.architecture->settle(shape);
  const std::vector<std::pair<distributed::ParallelConfig, int64_t>> layouts{{{.data = 2}, 2},
                                                                             {{.tensor = {.size = 2}}, 2}};
  for (const auto& [layout, guidance] : layouts) {
    const int64_t formula = step_traffic(shape, layout, guidance);
    EXPECT_GT(formula, 0);
    EXPECT_EQ(measured_step_traffic(shape, layout, guidance), formula)
        << "tensor " << layout.tensor.size << ", guidance " << guidance;
  }
}

}  // namespace
}  // namespace colossal::diffusion::step_traffic_test
