// What a pipeline sends of a UNet: its skips stay on a rank if the placement folds both halves of a level onto it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/unet_parts.h"
#include "colossal/parallel/pipeline/transfers.h"
#include "colossal/run/data.h"
#include "colossal/run/objective.h"
#include "colossal/run/program.h"

namespace colossal::diffusion::unet_pipeline_test {
namespace {

/// Returns the number of pictures, hidden states and skips, that two ranks send each other in a forward pass of a
/// micro-batch of sd-1.5-tiny. `layers`: blocks of each stage.
int64_t pictures_sent(const std::string& schedule, const std::vector<int64_t>& layers) {
  const run::Config config = run::read_given_config("", {"--model.name=sd-1.5-tiny"}).config;
  const run::ResolvedModel resolved = run::resolve_model(config, run::built_in());
  const auto world = comm::make_simulated_world(0, 2);
  distributed::ParallelConfig layout;
  layout.pipeline = {.size = 2, .schedule = schedule, .layers_per_stage = layers};
  comm::Mesh mesh(*world, layout.axes());
  distributed::DistributedModel model(
      mesh, layout, resolved.shape, {.device = at::kMeta},
      {.micro_batches = 4, .costs = [&] { return run::costs_of(resolved.shape, *resolved.objective.objective); }});
  std::vector<parallel::PassedState> passed;
  for (const auto& [state, from, to] : models::state_transfers(model.model(), model.cuts()))
    if (state == models::kUnetHidden || state >= models::kUnetSkips)
      passed.push_back({.state = state, .from = from, .to = to});
  const schedule::Placement& placement = model.executor().schedule().placement;
  const parallel::StateRoutes routes(placement, passed);
  int64_t sent = 0;
  for (int stage = 0; stage < placement.stages(); ++stage)
    for (const parallel::StateRoutes::Stop& stop : routes.departures(stage)) sent += stop.is_local ? 0 : 1;
  return sent;
}

// The first stage is the first level on the way down, the last one the same level on the way up. Two borders are
// between ranks: only the input of the next stage crosses each.
TEST(UnetPipeline, SendsNoSkipIfBothHalvesOfALevelAreOnARank) {
  const std::vector<int64_t> by_level{3, 4, 11, 4};
  for (const char* schedule : {"zero-bubble-v", "v-half", "v-min"})
    EXPECT_EQ(pictures_sent(schedule, by_level), 2) << schedule;
  // Stages in a loop have three borders between ranks, which skips cross, too.
  EXPECT_GT(pictures_sent("interleaved", by_level), 3);
  EXPECT_GT(pictures_sent("zero-bubble-v", {4, 4, 11, 3}), 2) << "halves of different levels";
}

}  // namespace
}  // namespace colossal::diffusion::unet_pipeline_test
