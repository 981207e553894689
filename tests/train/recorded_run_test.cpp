// A training step on shapes alone, with groups that only record calls. Any single rank gives the communication and
// operations of the real run, which also equal the published formulas.
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
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/task.h"
#include "colossal/models/task_batch.h"
#include "colossal/parallel/tensor/layer_cost.h"
#include "colossal/tensor/flops.h"
#include "colossal/train/engine.h"
#include "colossal/train/record_step.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::recorded_run_test {
namespace {

using comm::Phase;
using Calls = std::vector<comm::RecordedCall>;

/// A run of several steps.
struct Course {
  models::ModelShape shape;
  run::Config config;
  int64_t sequence = 8;

  int ranks() const { return static_cast<int>(config.parallel.ranks()); }
  std::unique_ptr<Engine> engine(comm::World& world, std::optional<at::Device> device) const {
    return initialize(world, config, shape, device);
  }
  void step(Engine& engine) const {
    engine.zero_grad();
    engine.train_step(test::batch_of_ones(shape, config.training.batch_size / config.parallel.data, sequence));
    engine.step();
  }
  /// Records the calls of two steps and an evaluation, in order. In the second step the gather order is known.
  Calls calls(comm::World& world, std::optional<at::Device> device) const {
    comm::RecordingWorld recording(world);
    const auto engine = this->engine(recording, device);
    for (int i = 0; i < 2; ++i) step(*engine);
    engine->evaluate(test::batch_of_ones(shape, config.training.batch_size / config.parallel.data, sequence));
    return recording.calls();
  }
  Calls recorded(int rank) const { return calls(*comm::make_simulated_world(rank, ranks()), at::kMeta); }
  std::vector<Calls> real() const {
    std::vector<Calls> all(ranks());
    std::mutex mutex;
    comm::run_ranks(ranks(), [&](comm::World& world) {
      Calls calls = this->calls(world, {});
      const std::lock_guard lock(mutex);
      all[world.rank()] = std::move(calls);
    });
    return all;
  }
};

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

distributed::ParallelConfig parallel_of(int64_t data, const parallel::TensorConfig& tensor,
                                        const parallel::PipelineConfig& pipeline = {}, int64_t zero = 0) {
  distributed::ParallelConfig config;
  config.data = data;
  config.tensor = tensor;
  config.pipeline = pipeline;
  config.zero = zero;
  config.chunk_mib = 0.01;  // several chunks
  return config;
}

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

// 64 ranks: data 4, tensor 4, pipeline 4, ZeRO 1.

/// GPT-2 small, with its vocabulary padded to a multiple of 128, as in Megatron-LM.
models::ModelShape gpt2_small() {
  return {.architecture = models::built_in().at("gpt2"),
          .vocabulary = 50304,
          .hidden = 768,
          .layers = 12,
          .heads = 12,
          .kv_heads = 12,
          .head_dim = 64,
          .ffn = 3072,
          .positions = 1024};
}

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

constexpr int kReplicas = 4, kTensor = 4, kStages = 4, kMicroBatches = 8;

Course of_64_ranks() {
  run::Config config;
  config.parallel = parallel_of(kReplicas, {.size = kTensor},
                                {.size = kStages, .schedule = "1f1b", .micro_batches = kMicroBatches}, 1);
  config.parallel.chunk_mib = 25;
  config.training.batch_size = kReplicas * kMicroBatches;
  return {gpt2_small(), config, 1024};
}

TEST(RecordedRun64, SendsAsTheFormulas) {
  const Course course = of_64_ranks();
  const double hidden = 1024.0 * 768, micro_batches = kMicroBatches, share = 1.0 / kTensor;
  double flops = 0;
  for (int rank = 0; rank < course.ranks(); ++rank) {
    const auto world = comm::make_simulated_world(rank, course.ranks());
    const auto engine = course.engine(*world, at::kMeta);
    world->traffic().reset();
    {
      const tensor::FlopCount count;
      course.step(*engine);
      flops += count.total();
    }
    const auto of = [&](const char* group, const char* collective, Phase phase) {
      return world->traffic().total(group, collective, phase).elements;
    };
    const int stage = engine->mesh().index("pipeline");
    const bool is_first = stage == 0, is_last = stage == kStages - 1;
    const std::vector<int64_t>& cuts = engine->distributed().cuts();
    const double blocks = static_cast<double>(cuts[stage + 1] - cuts[stage]);
    // Megatron-LM: two all_reduces per layer and direction; the embedding's; the head's input gradient; 3 values per
    // token.
    const double reduced = 2 * (1 - share) * micro_batches, of_loss = is_last ? hidden + 3 * 1024 : 0;
    EXPECT_DOUBLE_EQ(of("tensor", "all_reduce", Phase::Forward),
                     reduced * (2 * blocks * hidden + (is_first ? hidden : 0) + of_loss));
    EXPECT_DOUBLE_EQ(of("tensor", "all_reduce", Phase::Backward), reduced * 2 * blocks * hidden);
    // Each rank of a stage sends its slice of a hidden state, which the next stage gathers.
    const double moved = micro_batches * hidden * share, gathered = micro_batches * hidden * (1 - share);
    EXPECT_DOUBLE_EQ(of("pipeline", "send", Phase::Forward), is_last ? 0 : moved);
    EXPECT_DOUBLE_EQ(of("pipeline", "send", Phase::Backward), is_first ? 0 : moved);
    EXPECT_DOUBLE_EQ(of("tensor", "all_gather", Phase::Forward), is_first ? 0 : gathered);
    EXPECT_DOUBLE_EQ(of("tensor", "all_gather", Phase::Backward), is_last ? 0 : gathered);
    // ZeRO 1: gradients are sent to the rank that updates, and parameters back.
    double parameters = static_cast<double>(engine->store().padding());
    for (const nn::Parameter& p : engine->parameters()) parameters += static_cast<double>(p.value.numel());
    const double of_peers = (kReplicas - 1.0) / kReplicas;
    EXPECT_DOUBLE_EQ(of("data", "reduce_scatter", Phase::Backward), parameters * of_peers);
    EXPECT_DOUBLE_EQ(of("data", "all_gather", Phase::Optimizer), parameters * of_peers);
    EXPECT_EQ(of("data", "all_reduce", Phase::Backward), 0);
  }
  EXPECT_EQ(flops, kReplicas * kMicroBatches *
                       models::costs_of(course.shape, models::example_batch(course.shape, 1, 1024)).sum());
}

TEST(RecordedRun64, SendsAsTheFormulaOfZero3) {
  Course course{gpt2_small(), {}, 1024};
  course.shape.tied = false;  // the head's weight is in the last chunk
  course.config.parallel = parallel_of(64, {}, {}, 3);
  course.config.parallel.chunk_mib = 25;
  course.config.training.batch_size = 64;
  const auto world = comm::make_simulated_world(37, 64);
  const auto engine = course.engine(*world, at::kMeta);
  const memory::ChunkStore& store = engine->store();
  const double all = static_cast<double>(engine->parameters().numel() + store.padding()), share = 63.0 / 64;
  // Backward gathers all chunks but three. The head's chunk is still gathered, because its gradients are computed
  // during forward. The chunk before it is still gathered, too. The first chunk holds only the embedding, which
  // backward does not read.
  const auto length_of = [&](size_t chunk) { return static_cast<double>(store.chunks()[chunk]->length()); };
  const size_t chunks = store.chunks().size();
  const double saved = length_of(chunks - 1) + length_of(chunks - 2) + length_of(0);
  course.step(*engine);
  world->traffic().reset();
  course.step(*engine);
  const auto of = [&](const char* collective, Phase phase) {
    return world->traffic().total("data", collective, phase).elements;
  };
  EXPECT_DOUBLE_EQ(of("all_gather", Phase::Forward), all * share);
  EXPECT_DOUBLE_EQ(of("reduce_scatter", Phase::Backward), all * share);
  EXPECT_DOUBLE_EQ(of("all_gather", Phase::Backward), (all - saved) * share);
}

/// Returns the communication per additional layer: its linear layers, as published, its two norms and its biases.
void expect_published_layer(const parallel::TensorConfig& tensor, double of_norms_and_biases_forward,
                            double of_norms_and_biases_backward, int64_t batch) {
  models::ModelShape shape = gpt2_small();
  shape.hidden = 1024;
  shape.heads = shape.kv_heads = 16;
  shape.ffn = 4096;
  double elements[2][2] = {};  // elements by number of layers and direction
  for (const int64_t layers : {2, 3}) {
    shape.layers = layers;
    Course course{shape, {}, 256};
    course.config.parallel = parallel_of(1, tensor);
    course.config.training.batch_size = batch;
    const auto world = comm::make_simulated_world(23, 64);
    const auto engine = course.engine(*world, at::kMeta);
    world->traffic().reset();
    course.step(*engine);
    elements[layers - 2][0] = world->traffic().total("", "", Phase::Forward).elements;
    elements[layers - 2][1] = world->traffic().total("", "", Phase::Backward).elements;
  }
  const parallel::LayerCost cost =
      parallel::published_cost(tensor, {.hidden = 1024, .heads = 16, .batch = batch, .sequence = 256});
  EXPECT_DOUBLE_EQ(elements[1][0] - elements[0][0], cost.forward + of_norms_and_biases_forward);
  EXPECT_DOUBLE_EQ(elements[1][1] - elements[0][1], cost.backward + of_norms_and_biases_backward);
}

TEST(RecordedRun64, SendsAsOptimusIn2d) {
  // q = 8. Norms: 2 sums per row and direction over the ranks of a row; vectors are stored in q pieces and gathered for
  // use.
  const double q = 8, rows = 8 * 256, statistics = 2 * (q - 1) / q * 2 * rows / q;
  const double vectors = (q - 1) / q * (2 * 2 * 1024 + (3 + 1 + 4 + 1) * 1024) / q;
  expect_published_layer({.size = 64, .mode = "2d"}, 2 * statistics + vectors, 2 * statistics + vectors, 8);
}

TEST(RecordedRun64, SendsAsThePaperIn3d) {
  // l = 4. Norms: 2 sums per row and direction; gradients of vectors are summed once over the l^2 ranks with other
  // rows.
  const double l = 4, rows = 16 * 256, statistics = 2 * (l - 1) / l * 2 * rows / (l * l);
  const double vectors = 2 * (l * l - 1) / (l * l) * (2 * 2 * 1024 + (3 + 1 + 4 + 1) * 1024) / l;
  expect_published_layer({.size = 64, .mode = "3d"}, 2 * statistics, 2 * statistics + vectors, 16);
}

}  // namespace
}  // namespace colossal::train::recorded_run_test
