// Transfers of tiers in a step that is recorded from shapes, compared with the counters of the second step of a real
// run of the same config.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/decorators/recording.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/run/objective.h"
#include "colossal/train/engine.h"
#include "colossal/train/record_step.h"
#include "support/parity.h"
#include "support/temporary_folder.h"

namespace colossal::train::recorded_transfers_test {
namespace {

using Kind = StepEvent::Kind;

models::ModelShape shape_of_steps() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4, shape.hidden = 64, shape.head_dim = 16, shape.ffn = 256, shape.positions = 64;
  return shape;
}

constexpr int64_t kAll = int64_t{1} << 30;        // a budget that holds everything
constexpr int64_t kSmallHost = int64_t{2} << 20;  // parameters, gradients and states have more than 3 MB

struct Case {
  std::string name;
  int64_t data = 1;
  std::string recompute = "none";
  int64_t host = 0, device = 0;  ///< budgets of [memory]
  std::string recorded_device = "cpu";
};

run::Config config_of(const Case& c) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = c.data;
  config.parallel.zero = c.data > 1 ? 3 : 0;
  config.parallel.chunk_mib = 0.0625;  // several chunks
  config.precision.mode = "fp32";
  config.training.batch_size = 16;
  config.data.sequence = 32;
  config.memory.recompute = c.recompute;
  config.memory.host = c.host;
  config.memory.device = c.device;
  config.memory.placement = "static";  // no states move
  return config;
}

void step(Engine& engine, const tensor::Batch& batch) {
  engine.zero_grad();
  engine.train_step(batch);
  engine.step();
}

/// Bytes of a step.
struct Moved {
  double in = 0, out = 0;        // copied to and from the device
  double read = 0, written = 0;  // of the disk
};

Moved moved_by(const StepEvents& events) {
  Moved moved;
  for (const StepEvent& event : events.list) {
    if (event.kind == Kind::HostCopy) moved.in += event.written, moved.out += event.read;
    if (event.kind == Kind::Disk) moved.read += event.read, moved.written += event.written;
    const bool is_transfer = event.kind == Kind::HostCopy || event.kind == Kind::Disk;
    EXPECT_TRUE(!is_transfer || event.bytes == event.read + event.written);
  }
  return moved;
}

/// Returns what the second step of a rank moves, by its counters.
Moved counted(comm::World& world, const run::Config& config, std::optional<at::Device> device = {}) {
  const auto engine = initialize(world, config, shape_of_steps(), device);
  const tensor::Batch batch = run::batch_of_ones(engine->objective(), config);
  step(*engine, batch);
  const DeviceUse before = engine->device_use().value_or(DeviceUse{});
  const memory::TieredStore::Counts tiers_before = engine->tiers()->counts();
  step(*engine, batch);
  const DeviceUse after = engine->device_use().value_or(DeviceUse{});
  const memory::TieredStore::Counts tiers = engine->tiers()->counts();
  return {.in = static_cast<double>(after.copied_to - before.copied_to),
          .out = static_cast<double>(after.copied_from - before.copied_from),
          .read = static_cast<double>(tiers.bytes_read - tiers_before.bytes_read),
          .written = static_cast<double>(tiers.bytes_written - tiers_before.bytes_written)};
}

class RecordedTransfers : public testing::TestWithParam<Case> {};

TEST_P(RecordedTransfers, EqualTheCountersOfTheRealStep) {
  const Case c = GetParam();
  std::vector<Moved> real(static_cast<size_t>(c.data));
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(c.data), [&](comm::World& world) {
    const Moved mine = counted(world, config_of(c));
    const std::lock_guard lock(mutex);
    real[static_cast<size_t>(world.rank())] = mine;
  });
  run::Config config = config_of(c);
  config.run.device = c.recorded_device;
  for (size_t rank = 0; rank < real.size(); ++rank) {
    const Moved recorded = moved_by(record_step({config, shape_of_steps()}, static_cast<int>(rank)));
    EXPECT_GT(recorded.in, 0) << c.name;
    EXPECT_EQ(recorded.in, real[rank].in) << c.name << ", rank " << rank;
    EXPECT_EQ(recorded.out, real[rank].out) << c.name << ", rank " << rank;
    EXPECT_EQ(recorded.read + recorded.written, 0) << c.name;
  }
}

// On a CPU a rank of several borrows its part of a chunk from the host in place; DeviceUse counts the copy of an
// accelerator.
INSTANTIATE_TEST_SUITE_P(
    Layouts, RecordedTransfers,
    testing::Values(Case{.name = "one", .device = kAll}, Case{.name = "inputs", .recompute = "block", .device = kAll},
                    Case{.name = "accelerator", .device = kAll, .recorded_device = "cuda"},
                    Case{
                        .name = "sharded", .data = 2, .recompute = "block", .device = kAll, .recorded_device = "cuda"}),
    [](const auto& info) { return info.param.name; });

// A step without tiers moves nothing.
TEST(RecordedTransfersOfAStep, MoveNothingWithoutTiers) {
  const Moved moved = moved_by(record_step({config_of({.name = "none"}), shape_of_steps()}, 0));
  EXPECT_EQ(moved.in + moved.out + moved.read + moved.written, 0);
}

// The tiers of a run on shapes count what they announce.
TEST(RecordedTransfersOfAStep, HaveTheBytesOfTheDisk) {
  const test::TemporaryFolder folder;
  run::Config config = config_of({.name = "disk", .recompute = "block", .host = kSmallHost});
  config.memory.disk = folder.path();
  const auto world = comm::make_simulated_world(0, 1);
  const Moved want = counted(*world, config, at::kMeta);
  const StepEvents events = record_step({config, shape_of_steps()}, 0);
  const Moved moved = moved_by(events);
  EXPECT_GT(moved.read, 0);
  EXPECT_GT(moved.written, 0);
  EXPECT_EQ(moved.read, want.read);
  EXPECT_EQ(moved.written, want.written);
}

/// Returns the number of copies to the device that other work than a wait follows, and checks that each wait names a
/// call or transfer before it, at most once.
int overlapped_copies(const StepEvents& events) {
  std::vector<bool> is_waited;
  int overlapped = 0;
  for (size_t i = 0; i < events.list.size(); ++i) {
    const StepEvent& event = events.list[i];
    if (event.kind == Kind::Wait) {
      EXPECT_LT(static_cast<size_t>(event.call), is_waited.size());
      if (static_cast<size_t>(event.call) >= is_waited.size()) continue;
      EXPECT_FALSE(is_waited[static_cast<size_t>(event.call)]) << event.call;
      is_waited[static_cast<size_t>(event.call)] = true;
    }
    const bool begins = event.kind == Kind::Call || event.kind == Kind::HostCopy || event.kind == Kind::Disk;
    if (begins) is_waited.push_back(false);
    const bool is_copy = event.kind == Kind::HostCopy && event.written > 0;
    const bool is_last = i + 1 == events.list.size();
    if (is_copy && !is_last && events.list[i + 1].kind != Kind::Wait) ++overlapped;
  }
  return overlapped;
}

// A CPU copies itself. An accelerator copies the next chunk on a side stream while it computes.
TEST(RecordedTransfersOfAStep, OverlapOnlyOnAccelerators) {
  run::Config config = config_of({.name = "device", .device = kAll});
  EXPECT_EQ(overlapped_copies(record_step({config, shape_of_steps()}, 0)), 0);
  config.run.device = "cuda";
  EXPECT_GT(overlapped_copies(record_step({config, shape_of_steps()}, 0)), 0);
}

// Reads of the disk are ahead of their use: the rank waits for all of them that it uses, but not at once.
TEST(RecordedTransfersOfAStep, WaitForTheDisk) {
  const test::TemporaryFolder folder;
  run::Config config = config_of({.name = "disk", .host = kSmallHost});
  config.memory.disk = folder.path();
  const StepEvents events = record_step({config, shape_of_steps()}, 0);
  overlapped_copies(events);  // checks the waits
  std::vector<size_t> reads;  // places of reads among calls and transfers
  size_t begun = 0, waits = 0, waits_at_once = 0;
  for (size_t i = 0; i < events.list.size(); ++i) {
    const StepEvent& event = events.list[i];
    const bool begins = event.kind == Kind::Call || event.kind == Kind::HostCopy || event.kind == Kind::Disk;
    if (event.kind == Kind::Disk && event.read > 0) reads.push_back(begun);
    if (begins) ++begun;
    if (event.kind != Kind::Wait) continue;
    const bool is_read = std::find(reads.begin(), reads.end(), static_cast<size_t>(event.call)) != reads.end();
    if (!is_read) continue;
    ++waits;
    if (static_cast<size_t>(event.call) + 1 == begun && events.list[i - 1].kind == Kind::Disk) ++waits_at_once;
  }
  EXPECT_GT(waits, reads.size() / 2) << "tensors that are read are used";
  EXPECT_LT(waits_at_once, waits) << "some reads are ahead of their use";
}

}  // namespace
}  // namespace colossal::train::recorded_transfers_test
