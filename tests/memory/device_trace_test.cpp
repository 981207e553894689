// The device memory that a step needs in addition to its model data, and the chunks that fit together with it.
#include "colossal/memory/device_trace.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_store.h"
#include "support/thrown_message.h"

namespace colossal::memory::device_trace_test {
namespace {

using Numbers = std::vector<size_t>;

/// A meter that reports a value set by the test.
struct ToldMeter final : DeviceMeter {
  explicit ToldMeter(const int64_t& told) : told(told) {}
  void begin(int64_t) override {}
  void end() override {}
  int64_t peak() const override { return told; }
  void restart() override {}
  const int64_t& told;
};

constexpr int64_t kChunk = 10;

/// Runs a step with one pass through `chunks`, whose moments have `others`, with one chunk gathered in each.
void pass(DeviceTrace& trace, Timeline& timeline, int64_t& told, const Numbers& chunks,
          const std::vector<int64_t>& others, int64_t rest = 0) {
  told = 0;
  trace.begin_step();
  for (size_t i = 0; i < chunks.size(); ++i) {
    trace.end_moment();
    timeline.used(chunks[i]);
    trace.begin_moment(timeline, kChunk, kChunk);
    told = others[i] + kChunk;
  }
  timeline.end_pass();
  trace.end_pass(timeline);
  trace.begin_moment(timeline, 0, 0);
  told = rest;
  trace.end_passes();
  trace.end_step();
}

/// Returns what the trace knows of each moment of a pass through `chunks`; -1: nothing.
std::vector<int64_t> known(const DeviceTrace& trace, Timeline timeline, const Numbers& chunks) {
  std::vector<int64_t> others;
  for (const size_t chunk : chunks) {
    timeline.used(chunk);
    others.push_back(trace.others(timeline).value_or(-1));
  }
  return others;
}

TEST(DeviceTrace, PredictsTheMaximumThatRanksAgreedOn) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    int64_t told = 0;
    DeviceTrace trace(std::make_unique<ToldMeter>(told));
    Timeline timeline;
    const bool is_first = world.rank() == 0;
    pass(trace, timeline, told, {0, 1, 0}, {is_first ? 7 : 3, 5, is_first ? 1 : 2}, is_first ? 0 : 30);
    EXPECT_EQ(known(trace, timeline, {0, 1, 0}), (std::vector<int64_t>{-1, -1, -1})) << "the ranks may know others";
    EXPECT_TRUE(trace.agree(mesh));
    EXPECT_EQ(known(trace, timeline, {0, 1, 0}), (std::vector<int64_t>{7, 5, 2})) << "the most of both";
    EXPECT_EQ(trace.min_bytes(), 30) << "what is outside of passes counts, too";
    EXPECT_EQ(known(trace, timeline, {0, 2, 2}), (std::vector<int64_t>{7, 7, 7})) << "of what is not foretold the most";

    pass(trace, timeline, told, {0, 1, 0}, {4, 5, 2});
    EXPECT_FALSE(trace.agree(mesh)) << "nothing is more than what is known";
    pass(trace, timeline, told, {0, 1, 0}, {4, is_first ? 25 : 5, 2});
    EXPECT_TRUE(trace.agree(mesh));
    EXPECT_EQ(known(trace, timeline, {0, 1, 0}), (std::vector<int64_t>{7, 25, 2}));
    EXPECT_EQ(trace.min_bytes(), 25 + kChunk);
    EXPECT_EQ(trace.peak(), is_first ? 35 : 15);
    EXPECT_EQ(trace.peak_model(), kChunk);

    pass(trace, timeline, told, {1, 0}, {3, 4});
    EXPECT_TRUE(trace.agree(mesh)) << "another order";
    EXPECT_EQ(known(trace, timeline, {1, 0}), (std::vector<int64_t>{3, 4}));
  });
}

TEST(DeviceTrace, IgnoresUsesOutsideOfSteps) {
  int64_t told = 0;
  DeviceTrace trace(std::make_unique<ToldMeter>(told));
  Timeline timeline;
  timeline.used(0);
  trace.end_moment();
  trace.begin_moment(timeline, kChunk, kChunk);
  told = 100;
  timeline.end_pass();
  trace.end_pass(timeline);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    EXPECT_FALSE(trace.agree(mesh));
  });
}

TEST(DeviceTrace, ForgetsAnAbandonedStep) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    int64_t told = 0;
    DeviceTrace trace(std::make_unique<ToldMeter>(told));
    Timeline timeline;
    pass(trace, timeline, told, {0, 1}, {7, 5}, /*rest=*/3);
    EXPECT_TRUE(trace.agree(mesh));
    trace.begin_step();
    told = 100;
    trace.end_moment();  // what was there before the pass
    timeline.used(0);
    trace.begin_moment(timeline, kChunk, kChunk);
    told = 200;
    trace.abandon_step();
    EXPECT_FALSE(trace.is_in_passes());
    timeline.end_pass();
    trace.end_pass(timeline);
    EXPECT_FALSE(trace.agree(mesh));
    EXPECT_EQ(trace.min_bytes(), 7 + kChunk);
    pass(trace, timeline, told, {0, 1}, {7, 5}, /*rest=*/3);
    EXPECT_FALSE(trace.agree(mesh)) << "the next step is measured as before";
  });
}

// ---- which chunks are gathered

struct Outcome {
  std::vector<at::Tensor> gradients;
  std::vector<int64_t> gathers, loaded;  // counts of each step
  int64_t min_bytes = 0;
};

constexpr int64_t kLayers = 6, kSteps = 4;

/// Runs steps of two passes each through a chain of frozen layers, each a chunk of its own, which two replicas share.
/// An account of the test counts every step. `capacity`: maximum number of elements of a chunk, and of a part's
/// segments.
Outcome outcome_of(int64_t bytes, EvictionOrder order, int64_t capacity = 64, int64_t rows = 3) {
  Outcome outcome;
  // The library of products prepares itself in the first one. If two threads do it at once, one may round differently.
  at::linear(at::ones({3, 8}, at::kDouble), at::ones({8, 8}, at::kDouble));
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 3});
    std::vector<nn::Parameter*> layers;
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          &parameters.add("layer" + std::to_string(i), tensor::ShardSpec::whole({8, 8}), nn::Init::normal(0.3), true));
      layers.back()->value.set_requires_grad(false);
    }
    ChunkOptions options;
    options.sharing = Sharing::of_stage(3);
    options.capacity = capacity;
    const auto trace = std::make_shared<DeviceTrace>(make_device_meter(at::kCPU));
    ChunkStore store(parameters, mesh, options, std::make_unique<GatherWithinDevice>(trace, bytes, order));
    for (int step = 0; step < kSteps; ++step) {
      const ChunkStore::Counts before = store.counts();
      const Account account;
      trace->begin_step();
      for (int pass = 0; pass < 2; ++pass) {
        at::Tensor x = at::linspace(-1, 1, 8 * rows, at::kDouble).view({rows, 8}).requires_grad_();
        at::Tensor y = x;
        for (nn::Parameter* p : layers) y = at::tanh(at::linear(y, p->value));
        y.square().sum().backward();
        store.end_pass();
        if (world.rank() == 0) outcome.gradients.push_back(x.grad().clone());
      }
      trace->end_passes();
      store.end_pass();
      trace->agree(mesh);
      trace->end_step();
      EXPECT_LE(account.usage().peak_device, bytes) << "step " << step;
      EXPECT_GE(trace->peak(), account.usage().peak_device) << "it saw all that was there";
      EXPECT_EQ(store.counts().gathered, 0) << "the update has the device to itself";
      if (world.rank() != 0) continue;
      outcome.gathers.push_back(store.counts().gathers - before.gathers);
      outcome.loaded.push_back(store.counts().loaded - before.loaded);
      outcome.min_bytes = trace->min_bytes();
    }
  });
  return outcome;
}

TEST(GatherWithinDevice, KeepsAsManyChunksAsFit) {
  const int64_t up_and_down = 2 * kLayers - 1;  // the last chunk is still gathered when backward starts
  const int64_t part = 64 * 8 / 2;
  const Outcome all = outcome_of(1 << 20, EvictionOrder::UsedLast);
  EXPECT_EQ(all.gathers, (std::vector<int64_t>{2 * up_and_down, kLayers, kLayers, kLayers}))
      << "the first step keeps nothing, of which nothing is known; then each comes once";
  for (int64_t step = 0; step < kSteps; ++step) EXPECT_EQ(all.loaded[step], part * all.gathers[step]);
  const Outcome none = outcome_of(all.min_bytes, EvictionOrder::UsedLast);
  EXPECT_EQ(none.min_bytes, all.min_bytes) << "the smallest does not depend on what there is";
  std::vector<int64_t> best;  // gathers of Belady's policy for each budget
  for (const EvictionOrder order : {EvictionOrder::UsedLast, EvictionOrder::LongestUsed, EvictionOrder::LastComer}) {
    int64_t last = 2 * up_and_down;
    size_t i = 0;
    for (const int64_t bytes : {all.min_bytes, all.min_bytes + 2048, all.min_bytes + 4096}) {
      const Outcome got = outcome_of(bytes, order);
      EXPECT_LE(got.gathers.back(), last) << bytes << ": more room, more stays";
      last = got.gathers.back();
      if (order == EvictionOrder::UsedLast) best.push_back(last);
      EXPECT_GE(last, best[i++]) << bytes << ": none is better than Belady";
      for (size_t pass = 0; pass < got.gradients.size(); ++pass)
        EXPECT_TRUE(at::equal(got.gradients[pass], all.gradients[pass])) << bytes << ", pass " << pass;
    }
    EXPECT_LT(last, 2 * up_and_down);
  }
}

// The part of a chunk is assembled from its segments before the ranks exchange it. Until the chunk is gathered, this
// takes more memory than the chunk.
TEST(GatherWithinDevice, CountsTheWorkspaceOfGathers) {
  const int64_t part = 64 * 8 / 2;
  const Outcome one = outcome_of(1 << 20, EvictionOrder::UsedLast, 64, 1),
                cut = outcome_of(1 << 20, EvictionOrder::UsedLast, 16, 1);
  EXPECT_GT(cut.min_bytes, one.min_bytes);
  EXPECT_LE(cut.min_bytes, one.min_bytes + part);
  for (const int64_t more : {0, 512, 1024, 2048}) outcome_of(cut.min_bytes + more, EvictionOrder::UsedLast, 16, 1);
}

TEST(DeviceTrace, CountsAChangeForTheNextMomentAndEarlyGathers) {
  int64_t told = 0;
  DeviceTrace trace(std::make_unique<ToldMeter>(told));
  Timeline timeline;
  trace.begin_step();
  for (const size_t chunk : {0, 1}) {
    trace.end_moment();
    timeline.used(chunk);
    trace.begin_change();
    told = kChunk + (chunk == 0 ? 4 : 9);
    trace.begin_moment(timeline, kChunk, kChunk);
    told = kChunk + 6;
  }
  timeline.end_pass();
  trace.end_pass(timeline);
  trace.begin_moment(timeline, 0, 0);
  told = 0;
  trace.end_passes();
  trace.end_step();
  EXPECT_EQ(trace.peak(), kChunk + 9);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    EXPECT_TRUE(trace.agree(mesh));
  });
  EXPECT_EQ(known(trace, timeline, {0, 1}), (std::vector<int64_t>{6, 9}));
  EXPECT_EQ(trace.min_bytes(), kChunk + 9);
  timeline.used(0);
  EXPECT_EQ(trace.next_change(timeline), 9) << "what comes for the second moment now needs that now";
  timeline.used(1);
  EXPECT_EQ(trace.next_change(timeline), 4) << "of the next pass";
}

TEST(GatherWithinDevice, MapsPlacementNamesToOrders) {
  EXPECT_EQ(eviction_order_of("lru"), EvictionOrder::LongestUsed);
  EXPECT_NE(test::thrown_message([] { eviction_order_of("random"); }).find("one of auto, lru, static: got random"),
            std::string::npos);
}

}  // namespace
}  // namespace colossal::memory::device_trace_test
