// A training step on shapes alone, with groups that only record calls. Any single rank gives the communication and
// operations of the real run.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/comm/decorators/recording.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/task.h"
#include "colossal/models/task_batch.h"
#include "colossal/train/engine.h"
#include "colossal/train/record_step.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "train/recorded_courses.h"

namespace colossal::train::recorded_run_test {
namespace {

using comm::Phase;
using Calls = std::vector<comm::RecordedCall>;
using Course = RecordedCourse;

std::string to_string(const Calls& calls) {
  std::string text;
  for (const comm::RecordedCall& call : calls)
    text += concat(call.group, " ", comm::to_string(call.collective), " ", comm::to_string(call.phase), ", peer ",
                   call.peer, ": ", call.dtype, " ", at::IntArrayRef(call.in_sizes), " to ",
                   at::IntArrayRef(call.out_sizes), ", ", call.sent.bytes, " bytes\n");
  return text;
}

struct Layout {
  std::string name;
  distributed::ParallelConfig parallel;
  std::string precision = "fp32";
  int64_t accumulate = 1;
};

Course course_of(const Layout& layout, models::ModelShape shape) {
  shape.layers = 4;
  run::Config config;
  config.parallel = layout.parallel;
  config.precision.mode = layout.precision;
  config.training.batch_size = 16;
  config.training.accumulate = layout.accumulate;
  config.training.clip = 1;
  return {shape, config};
}

class RecordedRun : public testing::TestWithParam<Layout> {};

// Compares every call: group, collective, dtype, sizes, phase.
TEST_P(RecordedRun, EqualsCallsOfTheRealRun) {
  for (const models::ModelShape& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_vit()}) {
    // The sequence of an image is odd, so it does not divide.
    if (GetParam().parallel.tensor.sequence && shape.task().reads == models::Reads::Images) continue;
    const Course course = course_of(GetParam(), shape);
    const std::vector<Calls> real = course.real();
    for (int rank = 0; rank < course.ranks(); ++rank) {
      const Calls recorded = course.recorded(rank);
      EXPECT_TRUE(recorded == real[rank]);
      EXPECT_EQ(to_string(recorded), to_string(real[rank])) << shape.architecture->name << ", rank " << rank;
    }
  }
}

// Split experts exchange no tokens, so the sizes of all calls are known without numbers. Ranks hold other tokens of the
// sequence, and gather where these are in the micro-batch.
TEST(RecordedRun, EqualsCallsOfSplitExpertsWithACapacity) {
  models::ModelShape shape = test::tiny_llama();
  models::LlamaSizes own;
  own.experts = {.count = 4, .used = 2, .ffn = 20, .capacity = 0.9};
  shape.own = own;
  shape.set(models::MixtureSizes{own.experts.count});
  run::Config config;
  config.parallel.data = 2;
  config.parallel.tensor = {.size = 2, .sequence = true};
  config.parallel.expert.tensor = "split";
  config.training.batch_size = 16;
  const Course course{shape, config};
  const std::vector<Calls> real = course.real();
  for (int rank = 0; rank < course.ranks(); ++rank)
    EXPECT_TRUE(course.recorded(rank) == real[static_cast<size_t>(rank)]) << rank;
}

std::string to_string(const StepEvents& events) {
  std::string text;
  for (const StepEvent& event : events.list)
    text += concat("kind ", static_cast<int>(event.kind), " ", comm::to_string(static_cast<Phase>(event.phase)), " ",
                   static_cast<at::ScalarType>(event.dtype), ", collective ", static_cast<int>(event.collective),
                   " of group ", event.group, ", peer ", event.peer, ", call ", event.call, ", sizes ", event.m, " ",
                   event.n, " ", event.k, ", micro-batch ", event.micro_batch, " of chunk ", event.chunk,
                   event.recomputed ? " again" : "", ": ", event.operations, " operations, ", event.bytes, " bytes\n");
  return text;
}

/// Leaves out elementwise work, whose operators differ between the CPU and meta.
StepEvents without_elementwise(StepEvents events) {
  std::erase_if(events.list, [](const StepEvent& event) { return event.kind == StepEvent::Kind::Elementwise; });
  return events;
}

/// Returns the events of the second step of every rank.
std::vector<StepEvents> real_events(const Course& course) {
  std::vector<StepEvents> all(static_cast<size_t>(course.ranks()));
  std::mutex mutex;
  comm::run_ranks(course.ranks(), [&](comm::World& world) {
    comm::RecordingWorld recording(world);
    const auto engine = course.engine(recording, {});
    course.step(*engine);
    recording.clear();
    const comm::RecordingWorld::Operations operations(recording);
    course.step(*engine);
    const std::lock_guard lock(mutex);
    all[static_cast<size_t>(world.rank())] = recording.events();
  });
  return all;
}

// Compares every event, calls, waits, products and attention, in one order.
TEST_P(RecordedRun, EqualsEventsOfTheRealStep) {
  for (const models::ModelShape& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_vit()}) {
    if (GetParam().parallel.tensor.sequence && shape.task().reads == models::Reads::Images) continue;
    Course course = course_of(GetParam(), shape);
    course.config.data.sequence = course.sequence;
    const std::vector<StepEvents> real = real_events(course);
    for (int rank = 0; rank < course.ranks(); ++rank) {
      const StepEvents recorded = without_elementwise(record_step({course.config, course.shape}, rank));
      const StepEvents& want = real[static_cast<size_t>(rank)];
      EXPECT_TRUE(recorded == want);
      EXPECT_EQ(to_string(recorded), to_string(want)) << shape.architecture->name << ", rank " << rank;
      EXPECT_EQ(recorded.groups, want.groups);
    }
  }
}

TEST(RecordStep, HasProductsAndNoCallsOnOneRank) {
  Course course = course_of({"one", parallel_of(1, {})}, test::tiny_gpt2());
  course.config.data.sequence = 8;
  const StepEvents events = record_step({course.config, course.shape}, 0);
  double operations = 0;
  int attention = 0;
  for (const StepEvent& event : events.list) {
    EXPECT_NE(event.kind, StepEvent::Kind::Call);
    operations += event.operations;
    if (event.kind == StepEvent::Kind::Attention) ++attention;
    if (event.kind != StepEvent::Kind::Product) continue;
    EXPECT_EQ(event.operations, 2.0 * static_cast<double>(event.m * event.n * event.k));
  }
  EXPECT_EQ(operations, 16 * models::costs_of(course.shape, models::example_batch(course.shape, 1, 8)).sum());
  EXPECT_EQ(attention, 2 * course.shape.layers);
  EXPECT_TRUE(events.groups.empty());
}

/// Returns the sum of a member of the events of a kind.
double sum_of(const StepEvents& events, StepEvent::Kind kind, int phase, double StepEvent::* member) {
  double sum = 0;
  for (const StepEvent& event : events.list)
    if (event.kind == kind && event.phase == phase) sum += event.*member;
  return sum;
}

TEST(RecordStep, CountsTheBytesOfElementwiseWork) {
  Course course = course_of({"one", parallel_of(1, {})}, test::tiny_gpt2());
  course.config.data.sequence = 8;
  course.config.optimizer.name = "adamw";
  const StepEvents events = record_step({course.config, course.shape}, 0);
  const auto bytes = [&](Phase phase, double StepEvent::* member) {
    return sum_of(events, StepEvent::Kind::Elementwise, static_cast<int>(phase), member);
  };
  for (const Phase phase : {Phase::Forward, Phase::Backward, Phase::Optimizer}) {
    EXPECT_GT(bytes(phase, &StepEvent::read), 0) << comm::to_string(phase);
    EXPECT_GT(bytes(phase, &StepEvent::written), 0) << comm::to_string(phase);
  }
  const auto world = comm::make_simulated_world(0, 1);
  const auto engine = course.engine(*world, at::kMeta);
  double parameters = 0;
  for (const nn::Parameter& p : engine->parameters()) parameters += static_cast<double>(p.value.numel());
  // AdamW reads values, gradients and two states, and writes all but the gradients; each is fp32.
  EXPECT_GE(bytes(Phase::Optimizer, &StepEvent::read), 4 * 4 * parameters);
  EXPECT_GE(bytes(Phase::Optimizer, &StepEvent::written), 3 * 4 * parameters);
  for (const StepEvent& event : events.list)
    if (event.kind != StepEvent::Kind::Elementwise) EXPECT_EQ(event.read + event.written, 0);
}

TEST(RecordStep, NotesMicroBatchesAndChunks) {
  Course course =
      course_of({"stages", parallel_of(1, {}, {.size = 2, .schedule = "1f1b", .micro_batches = 4})}, test::tiny_gpt2());
  course.config.data.sequence = 8;
  std::vector<int> products(4);
  for (const StepEvent& event : record_step({course.config, course.shape}, 1).list) {
    const bool is_pass = event.phase == static_cast<uint8_t>(Phase::Forward) && event.kind == StepEvent::Kind::Product;
    if (!is_pass) continue;
    ASSERT_GE(event.micro_batch, 0);
    ASSERT_LT(event.micro_batch, 4);
    EXPECT_EQ(event.chunk, 0);
    ++products[static_cast<size_t>(event.micro_batch)];
  }
  EXPECT_GT(products[0], 0);
  EXPECT_THAT(products, testing::Each(products[0]));
}

// A block's forward products come again in backward, marked, and with their sizes.
TEST(RecordStep, MarksRecomputation) {
  Course course = course_of({"one", parallel_of(1, {})}, test::tiny_gpt2());
  course.config.data.sequence = 8;
  const auto again_and_all = [&] {
    std::array<double, 2> sums{};
    for (const StepEvent& event : record_step({course.config, course.shape}, 0).list) {
      if (event.recomputed) EXPECT_EQ(event.phase, static_cast<uint8_t>(Phase::Backward));
      sums[0] += event.recomputed ? event.operations : 0;
      sums[1] += event.operations;
    }
    return sums;
  };
  const auto kept = again_and_all();
  course.config.memory.recompute = "block";
  const auto recomputed = again_and_all();
  EXPECT_EQ(kept[0], 0);
  EXPECT_GT(recomputed[0], 0);
  EXPECT_EQ(recomputed[1], kept[1] + recomputed[0]);
}

TEST(RecordStep, NamesTheKeyOfAnUnsupportedOperator) {
  const Course course = course_of({"one", parallel_of(1, {})}, test::tiny_gpt2());
  nn::Adapter adapter;
  adapter.treatment = [](const std::string&) {
    at::zeros({2}, at::kMeta).roll(1, 0);  // LibTorch runs it only on tensors with data
    return nn::Treatment();
  };
  EXPECT_THAT(
      test::thrown_message(
          [&] { record_step({course.config, NamedModel{.shape = course.shape, .adapter = adapter}}, 0); }),
      testing::AllOf(testing::HasSubstr("[record] the step must run on tensors without data (at::kMeta): got an "
                                        "operator of model.name = \"gpt2-tiny\" (architecture gpt2) that does not "
                                        "(aten::roll"),
                     testing::HasSubstr("; choose another")));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RecordedRun,
    testing::Values(
        Layout{"data2_tensor2_pipeline2_zero1",
               parallel_of(2, {.size = 2}, {.size = 2, .schedule = "1f1b", .micro_batches = 4}, 1)},
        Layout{"data4_pipeline2_v", parallel_of(4, {}, {.size = 2, .schedule = "zero-bubble-v", .micro_batches = 4})},
        Layout{"data2_tensor4_sequence", parallel_of(2, {.size = 4, .mode = "1d", .sequence = true}, {}, 1)},
        Layout{"data4_tensor2_zero3_bf16", parallel_of(4, {.size = 2}, {}, 3), "bf16", 2},
        Layout{"data2_tensor2_zero1_fp8", parallel_of(2, {.size = 2}, {}, 1), "fp8"},
        Layout{"data8_zero2", parallel_of(8, {}, {}, 2), "fp32", 2},
        Layout{"data2_tensor4_2d", parallel_of(2, {.size = 4, .mode = "2d"})},
        Layout{"tensor8_2_5d", parallel_of(1, {.size = 8, .mode = "2.5d", .depth = 2})},
        Layout{"tensor8_3d", parallel_of(1, {.size = 8, .mode = "3d"}, {}, 0)}),
    [](const auto& info) { return info.param.name; });

// A head of 2^17 columns on each of two ranks makes 128 MiB of logits for 256 tokens. These are two slices on a CPU,
// and one on accelerators.
TEST(RecordedRun, RecordsTheDeviceOfTheConfig) {
  const auto largest = [](const std::string& device) {
    Course course{test::tiny_gpt2(), {}};
    course.shape.vocabulary = 1 << 18;
    course.config.run.device = device;
    course.config.parallel = parallel_of(1, {.size = 2});
    course.config.training.batch_size = 32;
    const Calls calls = course.recorded(0);
    return std::count_if(calls.begin(), calls.end(), [](const comm::RecordedCall& call) {
      return call.op == comm::Reduce::Max && call.phase == Phase::Forward;
    });
  };
  EXPECT_EQ(largest("cpu"), 2 * 2) << "in each of two steps";
  EXPECT_EQ(largest("cuda"), 2 * 1);
}

}  // namespace
}  // namespace colossal::train::recorded_run_test
