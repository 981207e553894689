// The page of a step that is recorded and predicted, with tiers whose copies it draws.
#include "colossal/predict/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "colossal/predict/step.h"
#include "support/parity.h"

namespace colossal::predict::page_test {
namespace {

using testing::HasSubstr;
using testing::Not;

models::ModelShape even_shape() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4, shape.hidden = 64, shape.head_dim = 16, shape.ffn = 256, shape.positions = 64, shape.dropout = 0;
  return shape;
}

run::Config config_of(int64_t data, int64_t pipeline) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = data;
  config.parallel.pipeline.size = static_cast<int>(pipeline);
  config.precision.mode = "fp32";
  config.training.batch_size = 8 * data;
  config.data.sequence = 32;
  return config;
}

/// Accelerators with a host and a disk.
plan::Profile accelerators() {
  plan::Profile profile;
  profile.name = "accelerators";
  profile.device.memory = int64_t{1} << 30;
  profile.device.bandwidth = 1e12;
  profile.device.fp32 = 1e13;
  profile.node = {8, 1e11, 1e-6};
  profile.host = {2.5e10, 1e-6};
  profile.disk = {.read = 6e9, .write = 3e9, .latency = 1e-4};
  return profile;
}

std::string page_of(const run::Config& config, const plan::Cluster& cluster) {
  const RecordedRoles roles = record_roles({config, even_shape()});
  return prediction_page("a.toml", config, roles, predict_step({config, even_shape()}, roles, cluster), cluster);
}

TEST(PageOfAPrediction, DrawsEveryRole) {
  const std::string page = page_of(config_of(2, 2), plan::Cluster(accelerators()));
  EXPECT_THAT(page, HasSubstr("a.toml on accelerators"));
  for (const char* part : {"aria-label='streams of ", "aria-label='memory over time'", "all_reduce of data, sends ",
                           "forward, micro-batch 0", "send of ", "memory of a device without its reserve", "Goodput: "})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("copy to the host")));
}

TEST(PageOfAPrediction, DrawsCopiesOfTiers) {
  run::Config config = config_of(1, 1);
  config.run.device = "cuda";
  config.memory.device = int64_t{1} << 30;
  config.memory.placement = "static";  // states stay on the host
  const std::string page = page_of(config, plan::Cluster(accelerators()));
  for (const char* part : {">host copies<", "copy to the device, ", "copy to the host, ", "memory.device: 1.0 GiB"})
    EXPECT_THAT(page, HasSubstr(part));
}

// The times by hand: a checkpoint writes 3 GB at 3 GB/s, and starts after 0.1 ms.
TEST(LostTimeOfAPrediction, TakesTheTimeOfACheckpointFromTheDisk) {
  plan::Prediction prediction{.ranks = 16, .step_seconds = 2};
  prediction.roles.resize(2);
  prediction.roles[1].kinds = {.parameters = 1'000'000'000, .states = 2'000'000'000, .activations = 9'000'000'000};
  const plan::LostTime lost = lost_time(prediction, plan::Cluster(accelerators()));
  EXPECT_EQ(lost.devices, 16);
  EXPECT_DOUBLE_EQ(lost.checkpoint, 1.0001);
  EXPECT_EQ(lost.checkpoint_interval, accelerators().failures.best_interval(16, lost.checkpoint));
  plan::Profile machine = accelerators();
  machine.device.shared = true;
  machine.disk = {};
  const plan::LostTime shared = lost_time(prediction, plan::Cluster(machine, 8));
  EXPECT_EQ(shared.devices, 2) << "8 ranks fail together";
  EXPECT_EQ(shared.checkpoint, 0);
}

}  // namespace
}  // namespace colossal::predict::page_test
