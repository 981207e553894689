// The measured timeline of a pipeline holds every step of every rank, in the order of their dependencies.
#include "colossal/train/gather_timeline.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::train::gather_timeline_test {
namespace {

using schedule::Action;
using schedule::Event;

constexpr int kMicroBatches = 4;

run::Config config_of(int64_t pipeline, int64_t data, const std::string& schedule) {
  run::Config c;
  c.precision.mode = "fp64";
  c.parallel.data = data;
  c.parallel.pipeline = {.size = pipeline, .schedule = schedule, .micro_batches = pipeline > 1 ? kMicroBatches : 0};
  c.training = {.steps = 10, .batch_size = 4 * kMicroBatches, .seed = 1};
  return c;
}

/// Returns the timelines after `steps` steps, and the schedule that made them. Checks that only rank 0 gets one.
std::optional<report::PipelineTimeline> timeline_of(const run::Config& config, int steps,
                                                    std::optional<schedule::Schedule>* ran = nullptr) {
  std::optional<report::PipelineTimeline> result;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    auto engine = initialize(world, config, test::tiny_gpt2());
    const int64_t rows = config.training.batch_size / config.parallel.data;
    const at::Tensor tokens = at::arange(rows * 7, at::kLong).view({rows, 7}).remainder(43);
    for (int step = 0; step < steps; ++step) {
      engine->zero_grad();
      engine->train_step(data::text_batch(tokens.narrow(1, 0, 6), tokens.narrow(1, 1, 6),
                                          at::arange(6, at::kLong).expand({rows, 6}).contiguous()));
      engine->step();
    }
    auto timeline = gather_pipeline_timeline(engine->mesh(), engine->distributed().executor());
    if (world.rank() == 0 && ran) *ran = engine->distributed().executor().schedule();
    if (world.rank() == 0)
      result = std::move(timeline);
    else
      EXPECT_FALSE(timeline.has_value()) << "rank " << world.rank();
  });
  return result;
}

void expect_whole(const report::PipelineTimeline& timeline, const schedule::Schedule& schedule) {
  auto event = timeline.measured.events.begin();
  for (int rank = 0; rank < 2; ++rank) {
    for (const schedule::PipelineOp& step : schedule.ranks[rank]) {
      if (step.action == Action::Reduce || step.action == Action::Update) continue;
      ASSERT_NE(event, timeline.measured.events.end());
      EXPECT_EQ(event->rank, rank);
      EXPECT_EQ(event->step, step) << to_string(step, schedule.placement.chunks());
      EXPECT_LE(event->begin, event->end);
      ++event;
    }
  }
  EXPECT_EQ(event, timeline.measured.events.end());
  EXPECT_EQ(timeline.planned.events.size(), timeline.measured.events.size());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NEAR(timeline.planned.busy[rank], timeline.measured.busy[rank], 1e-9 * timeline.measured.makespan)
        << "means add up to what they are of";
    EXPECT_DOUBLE_EQ(timeline.planned.peak_live[rank], timeline.measured.peak_live[rank]);
    double waited = 0;
    for (const double time : timeline.waited[rank]) waited += time;
    EXPECT_LE(waited, timeline.measured.span[rank] - timeline.measured.busy[rank] + 1e-6);
    EXPECT_EQ(timeline.waited[rank][rank], 0);
  }
}

void expect_ordered(const schedule::Timeline& timeline) {
  std::map<std::pair<int, int>, Event> forward, backward;  // key: rank and micro-batch
  for (const Event& event : timeline.events) {
    if (event.step.action == Action::Forward) forward.insert({{event.rank, event.step.micro_batch}, event});
    if (schedule::is_backward(event.step.action)) backward.insert({{event.rank, event.step.micro_batch}, event});
  }
  for (int i = 0; i < kMicroBatches; ++i) {
    // clocks are doubles of seconds since 1970
    EXPECT_LE(forward.at({0, i}).end, forward.at({1, i}).begin + 1e-3) << i;
    EXPECT_LE(backward.at({1, i}).end, backward.at({0, i}).begin + 1e-3) << i;
  }
}

TEST(PipelineTimeline, HoldsEveryStepOfEveryRankInOrder) {
  for (const std::string name : {"gpipe", "1f1b", "zero-bubble-h1"}) {
    SCOPED_TRACE(name);
    std::optional<schedule::Schedule> ran;
    const auto timeline = timeline_of(config_of(2, 1, name), 2, &ran);
    ASSERT_TRUE(timeline.has_value());
    expect_whole(*timeline, *ran);
    expect_ordered(timeline->measured);
    expect_ordered(timeline->planned);
  }
}

TEST(PipelineTimeline, MeasuresTheReplicaOfRankZero) {
  std::optional<schedule::Schedule> ran;
  const auto timeline = timeline_of(config_of(2, 2, "1f1b"), 1, &ran);
  ASSERT_TRUE(timeline.has_value());
  EXPECT_EQ(timeline->measured.ranks, 2);
  expect_whole(*timeline, *ran);
}

TEST(PipelineTimeline, WritesATrace) {
  const auto timeline = timeline_of(config_of(2, 1, "1f1b"), 1);
  ASSERT_TRUE(timeline.has_value());
  const auto trace = nlohmann::json::parse(schedule::chrome_trace(timeline->titled(), 1e-3));
  std::map<int, int> steps;  // by process: planned, measured
  for (const auto& event : trace["traceEvents"]) steps[event["pid"].get<int>()] += event["ph"] == "X";
  EXPECT_EQ(steps, (std::map<int, int>{{0, 2 * 2 * kMicroBatches}, {1, 2 * 2 * kMicroBatches}}));
}

TEST(PipelineTimeline, RequiresAStepAndAPipeline) {
  EXPECT_FALSE(timeline_of(config_of(2, 1, "1f1b"), 0).has_value());
  EXPECT_FALSE(timeline_of(config_of(1, 1, "1f1b"), 1).has_value());
}

}  // namespace
}  // namespace colossal::train::gather_timeline_test
