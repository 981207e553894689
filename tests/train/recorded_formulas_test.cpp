// The communication of recorded steps of 64 ranks equals published formulas.
#include <gtest/gtest.h>

#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/models/registry.h"
#include "colossal/models/task.h"
#include "colossal/models/task_batch.h"
#include "colossal/parallel/tensor/layer_cost.h"
#include "colossal/tensor/flops.h"
#include "train/recorded_courses.h"

namespace colossal::train::recorded_formulas_test {
namespace {

using comm::Phase;
using Course = RecordedCourse;

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

constexpr int kReplicas = 4, kTensor = 4, kStages = 4, kMicroBatches = 8;

Course of_64_ranks() {
  run::Config config;
  config.parallel = parallel_of(kReplicas, {.size = kTensor},
                                {.size = kStages, .schedule = "1f1b", .micro_batches = kMicroBatches}, 1);
  config.parallel.chunk_mib = 25;
  config.training.batch_size = kReplicas * kMicroBatches;
  return {gpt2_small(), config, 1024};
}

TEST(RecordedFormulas, SendsAsTheFormulas) {
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

TEST(RecordedFormulas, SendsAsTheFormulaOfZero3) {
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

TEST(RecordedFormulas, SendsAsOptimusIn2d) {
  // q = 8. Norms: 2 sums per row and direction over the ranks of a row; vectors are stored in q pieces and gathered for
  // use.
  const double q = 8, rows = 8 * 256, statistics = 2 * (q - 1) / q * 2 * rows / q;
  const double vectors = (q - 1) / q * (2 * 2 * 1024 + (3 + 1 + 4 + 1) * 1024) / q;
  expect_published_layer({.size = 64, .mode = "2d"}, 2 * statistics + vectors, 2 * statistics + vectors, 8);
}

TEST(RecordedFormulas, SendsAsThePaperIn3d) {
  // l = 4. Norms: 2 sums per row and direction; gradients of vectors are summed once over the l^2 ranks with other
  // rows.
  const double l = 4, rows = 16 * 256, statistics = 2 * (l - 1) / l * 2 * rows / (l * l);
  const double vectors = 2 * (l * l - 1) / (l * l) * (2 * 2 * 1024 + (3 + 1 + 4 + 1) * 1024) / l;
  expect_published_layer({.size = 64, .mode = "3d"}, 2 * statistics, 2 * statistics + vectors, 16);
}

}  // namespace
}  // namespace colossal::train::recorded_formulas_test
