// The number of times that the host waits for its device in a step, as counted by the device. Tests compare two counts,
// so that a wait that grows with layers or micro-batches is found.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/json.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batches.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/generate.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/models/registry.h"
#include "colossal/optim/config.h"
#include "colossal/run/streamed_weights.h"
#include "colossal/train/engine.h"
#include "support/parity.h"
#include "support/temporary_folder.h"
#include "support/trap_device.h"
#include "support/trap_kernels.h"

namespace colossal::train::waits_trap_test {
namespace {

struct Choice {
  int64_t layers = 1, micro_batches = 1;
  std::string clip_by = "norm", optimizer = "adamw", precision = "fp32", recompute = "none", documents = "separate";
  double dropout = 0, loss_scale = 0;  ///< loss scale 0 = the default
  bool rounded_by_chance = false, pinned = false;
  bool several_documents = false;   ///< true = several documents in each row
  std::string sequence = "gather";  ///< mode of sequence parallelism, with 2 ranks
  int64_t ranks = 1;
  int64_t host = 0;  ///< bytes of the host's tier; 0 = no tiers
};

/// Returns the counts of the second step, because in the first one GaLore computes its projections and tables are made.
/// `chunks` gets the number of chunks, if it is not null.
test::TrapCounts waits_of(const models::ModelShape& shape, const Choice& choice, int64_t* chunks = nullptr) {
  test::TrapCounts counts;
  comm::run_ranks(static_cast<int>(choice.ranks), [&](comm::World& world) {
    run::Config config;
    config.training.batch_size = 4;
    config.parallel.sequence = {.size = choice.ranks, .mode = choice.sequence};
    config.parallel.chunk_mib = 0.01;  // small enough that more layers are more chunks
    config.training.accumulate = choice.micro_batches;
    config.training.clip = 1;
    config.training.clip_by = choice.clip_by;
    config.optimizer.name = choice.optimizer;
    config.precision.mode = choice.precision;
    config.precision.masters = !choice.rounded_by_chance;
    if (choice.loss_scale > 0) config.precision.loss_scale = choice.loss_scale;
    config.optimizer.stochastic_rounding = choice.rounded_by_chance;
    config.memory.recompute = choice.recompute;
    config.memory.host = choice.host;
    config.data.documents = choice.documents;
    if (choice.optimizer == "galore") config.optimizer.rank = 5;
    models::ModelShape own = shape;
    own.layers = choice.layers, own.dropout = choice.dropout;
    const at::Device device = test::trap_device(world.rank());
    auto engine = initialize(world, config, own, device);
    const tensor::Batch batch = test::batch_of_ones(own, 4, 8);
    if (choice.several_documents) batch.at("documents").narrow(1, 5, 3).fill_(1);
    const auto step = [&] {
      engine->zero_grad();
      engine->train_step(choice.pinned ? data::pinned(batch) : batch);
      engine->step();
    };
    step();
    const test::TrapWaits waits(device);
    step();
    if (world.rank() == 0) counts = waits.counts();
    if (world.rank() == 0 && chunks) *chunks = static_cast<int64_t>(engine->store().chunks().size());
  });
  return counts;
}

class WaitsOnTrap : public testing::Test {
 protected:
  static void SetUpTestSuite() { test::trap_device(); }
  /// Expects the same number of waits with two more layers, which have more parameter pieces and chunks, and with more
  /// micro-batches.
  static void expect_no_more(const models::ModelShape& shape, const Choice& choice, const std::string& what) {
    Choice deeper = choice, more = choice;
    deeper.layers += 2;
    more.micro_batches *= 4;
    const test::TrapCounts one = waits_of(shape, choice), by_depth = waits_of(shape, deeper) - one,
                           by_number = waits_of(shape, more) - one;
    EXPECT_EQ(by_depth.waits(), 0) << shape.architecture->name << ", " << what << ", of two layers: " << by_depth;
    EXPECT_EQ(by_number.waits(), 0) << shape.architecture->name << ", " << what
                                    << ", of 3 micro-batches: " << by_number;
  }
};

TEST_F(WaitsOnTrap, WaitsIndependentlyOfLayersAndMicroBatches) {
  for (const auto& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_vit(), test::tiny_bert()})
    expect_no_more(shape, {}, "as it is");
  const models::ModelShape llama = test::tiny_llama();
  expect_no_more(llama, {.clip_by = "largest"}, "largest");
  expect_no_more(llama, {.clip_by = "value"}, "value");
  expect_no_more(llama, {.recompute = "block"}, "block");
  expect_no_more(llama, {.recompute = "selective"}, "selective");
  expect_no_more(llama, {.documents = "joined"}, "joined");
  expect_no_more(llama, {.dropout = 0.1}, "dropout");
  for (const std::string mode : {"bf16", "fp16", "fp8"}) expect_no_more(llama, {.precision = mode}, mode);
  expect_no_more(llama, {.precision = "bf16", .rounded_by_chance = true}, "rounding by chance");
  models::ModelShape wide = llama;
  wide.head_dim = 8;  // a size that flash attention supports
  for (const std::string mode : {"fp32", "bf16"})
    expect_no_more(wide, {.precision = mode, .several_documents = true}, "several documents, " + mode);
}

TEST_F(WaitsOnTrap, CopiesBordersOfDocumentsOncePerBatch) {
  models::ModelShape shape = test::tiny_llama();
  shape.head_dim = 8;  // a size that flash attention supports
  for (const std::string recompute : {"none", "block"}) {
    const Choice one{.precision = "bf16", .recompute = recompute, .several_documents = true};
    Choice deeper = one, more = one;
    deeper.layers = 3;
    more.micro_batches = 4;
    EXPECT_EQ(waits_of(shape, one).copies_not_awaited, 1) << recompute;
    EXPECT_EQ(waits_of(shape, deeper).copies_not_awaited, 1) << recompute << ": layers more ask for no more";
    EXPECT_EQ(waits_of(shape, more).copies_not_awaited, 4) << recompute << ": each of them a batch of its own";
  }
}

// Ranks that exchange tokens for heads have whole rows and their documents. All layers use the same borders.
TEST_F(WaitsOnTrap, CopiesBordersOfDocumentsOncePerBatchUnderUlysses) {
  models::ModelShape shape = test::tiny_llama();
  shape.head_dim = 8;  // a size that flash attention supports
  for (const int64_t layers : {1, 3}) {
    const Choice one{.layers = layers, .precision = "bf16", .sequence = "ulysses", .ranks = 2};
    Choice several = one;
    several.several_documents = true;
    const test::TrapCounts more = waits_of(shape, several) - waits_of(shape, one);
    EXPECT_EQ(more.copies_not_awaited, 1) << layers << " layers: " << more;
    EXPECT_EQ(more.waits(), 0) << layers << " layers: " << more;
  }
}

TEST_F(WaitsOnTrap, WaitsIndependentlyOfLayersByEveryRule) {
  for (const std::string& rule : optim::rule_names())
    if (rule != "adam8bit") {  // adam8bit requires the library's kernels
      expect_no_more(test::tiny_gpt2(), {.optimizer = rule}, rule);
      EXPECT_EQ(waits_of(test::tiny_gpt2(), {.optimizer = rule, .pinned = true}).waits(), 1) << rule;
    }
}

TEST_F(WaitsOnTrap, WaitsIndependentlyOfLayersByOurKernels) {
  const test::TrapKernels kernels;
  expect_no_more(test::tiny_llama(), {.dropout = 0.1}, "dropout");
  expect_no_more(test::tiny_llama(), {.precision = "bf16", .rounded_by_chance = true}, "rounding by chance");
  expect_no_more(test::tiny_llama(), {.optimizer = "adam8bit"}, "adam8bit");
  EXPECT_EQ(waits_of(test::tiny_llama(), {.pinned = true}).waits(), 1);
  EXPECT_GT(kernels.launches(), 0);
}

TEST_F(WaitsOnTrap, WaitsOnceForTheLossAndTheNorm) {
  const test::TrapCounts step = waits_of(test::tiny_llama(), {.pinned = true});
  EXPECT_EQ(step.copies_to_host, 1);
  EXPECT_EQ(step.waits(), 1) << step;
  EXPECT_EQ(step.copies_not_awaited, 3) << "inputs, labels, positions; documents stay with the host";
  EXPECT_EQ(step.scalar_reads + step.sizes_read, 0);
  EXPECT_EQ(waits_of(test::tiny_llama(), {}).copies_to_device, 3) << "of a batch that may be swapped out";
}

TEST_F(WaitsOnTrap, WaitsOnceInEveryFormatEvenForSkippedSteps) {
  for (const std::string format : {"fp32", "bf16", "fp16", "fp8"})
    for (const std::string clip_by : {"norm", "largest", "value"}) {
      const test::TrapCounts step =
          waits_of(test::tiny_llama(), {.clip_by = clip_by, .precision = format, .pinned = true});
      EXPECT_EQ(step.waits(), 1) << format << ", " << clip_by << ": " << step;
    }
  const test::TrapCounts skipped =
      waits_of(test::tiny_llama(), {.precision = "fp16", .loss_scale = 0x1p60, .pinned = true});
  EXPECT_EQ(skipped.waits(), 1) << "the norm says whether anything overflowed: " << skipped;
}

// Gradients are copied to the host while the device computes, and the update reads them there. The host waits only so
// that at most four copies are pending, and for the last copy.
TEST_F(WaitsOnTrap, WaitsForTheLossAndPendingGradientsOfTiers) {
  for (const int64_t layers : {1, 3})
    for (const std::string format : {"fp32", "bf16"})
      for (const int64_t micro_batches : {1, 4}) {
        int64_t chunks = 0;
        const test::TrapCounts step = waits_of(test::tiny_llama(),
                                               {.layers = layers,
                                                .micro_batches = micro_batches,
                                                .precision = format,
                                                .recompute = "block",
                                                .pinned = true,
                                                .host = 64 << 20},
                                               &chunks);
        const std::string what = concat(format, ", ", layers, " layers, ", micro_batches, " micro-batches, ", chunks,
                                        " chunks: ", step.copies_awaited);
        EXPECT_EQ(step.waits() - step.copies_awaited, 1) << what << ", " << step;
        EXPECT_EQ(step.copies_to_host, 1) << what << ", " << step;
        EXPECT_EQ(step.copies_awaited, chunks > 4 ? chunks * micro_batches - 3 : 1) << what << ", " << step;
      }
}

class Sevens : public data::Samples {
 public:
  int64_t count() const override { return 4; }
  tensor::Batch make(int64_t rows) const override {
    return data::image_batch(at::zeros({rows, 3, 1, 1}), at::zeros({rows, 1}, at::kLong));
  }
  void fill(int64_t, uint64_t, tensor::Batch& batch, int64_t row) const override { batch.at("images")[row].fill_(7); }
  nlohmann::json traits() const override { return nlohmann::json::object(); }
};

TEST_F(WaitsOnTrap, PinsBatchesOnRequest) {
  const auto samples = std::make_shared<Sevens>();
  data::Batches batches(samples, {.batch_size = 2, .pinned = true});
  const tensor::Batch batch = batches.next();
  EXPECT_TRUE(batch.at("images").is_pinned() && batch.at("labels").is_pinned());
  EXPECT_TRUE(at::equal(batch.at("images"), at::full({2, 3, 1, 1}, 7.0F)));
  EXPECT_FALSE(data::Batches(samples, {.batch_size = 2}).next().at("images").is_pinned());
}

// Without the wait, the host would read a batch that has not arrived yet.
TEST_F(WaitsOnTrap, WaitsForADeviceBatchThatTheHostReads) {
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, run::Config{}, test::tiny_llama(), at::kCPU);
    const tensor::Batch batch = test::batch_of_ones(test::tiny_llama(), 4, 8).map([](const tensor::Field& field) {
      return field.stays_whole ? field.tensor : field.tensor.to(test::trap_device());
    });
    const test::TrapWaits waits(test::trap_device());
    engine->train_step(batch);
    EXPECT_EQ(waits.counts().copies_not_awaited, 0) << waits.counts();
    EXPECT_GE(waits.counts().copies_to_host, 3) << waits.counts();
  });
}

TEST_F(WaitsOnTrap, WaitsOncePerEvaluatedBatch) {
  const auto waits = [](models::ModelShape shape, int64_t layers) {
    test::TrapCounts counts;
    comm::run_ranks(1, [&](comm::World& world) {
      shape.layers = layers;
      const auto engine = initialize(world, run::Config{}, shape, test::trap_device());
      const tensor::Batch batch = data::pinned(test::batch_of_ones(shape, 4, 8));
      engine->evaluate(batch);
      const test::TrapWaits during(test::trap_device());
      engine->evaluate(batch);
      counts = during.counts();
    });
    return counts;
  };
  for (const auto& shape : {test::tiny_llama(), test::tiny_vit()})  // the ViT also counts correct predictions
    for (const int64_t layers : {1, 3}) {
      EXPECT_EQ(waits(shape, layers).waits(), 1) << shape.architecture->name;
      EXPECT_EQ(waits(shape, layers).bytes_to_host, (shape.task().generates() ? 1 : 2) * 8);
    }
}

/// Returns the counts of generating `tokens` tokens. `memory` are the budgets of streamed weights.
test::TrapCounts generating(int64_t layers, int64_t tokens, const infer::SamplingOptions& sampling,
                            const run::MemoryConfig& memory = {}) {
  test::TrapCounts counts;
  comm::run_ranks(1, [&](comm::World& world) {
    models::ModelShape shape = test::tiny_llama();
    shape.layers = layers;
    const distributed::ParallelConfig layout;
    comm::Mesh mesh(world, layout.axes());
    nn::Parameters::Options options{at::kFloat, test::trap_device(), 5};
    options.without_memory = memory.has_tiers();
    distributed::DistributedModel model(mesh, layout, shape, options, {});
    std::optional<run::StreamedWeights> weights;
    if (memory.has_tiers()) {
      weights.emplace(model, mesh, memory);
      for (const checkpoint::NamedTensor& tensor : weights->tensors()) tensor.value.write().value.fill_(0.01);
      weights->loaded();
    }
    const test::TrapWaits during(test::trap_device());
    infer::generate(model, {.prompt = {3, 1, 4}, .options = {.max_tokens = tokens, .sampling = sampling}});
    counts = during.counts();
  });
  return counts;
}

TEST_F(WaitsOnTrap, WaitsPerTokenIndependentlyOfLayers) {
  for (const infer::SamplingOptions& sampling :
       {infer::SamplingOptions{}, infer::SamplingOptions{.temperature = 1, .top_k = 9, .top_p = 0.9}}) {
    const test::TrapCounts four = generating(1, 6, sampling) - generating(1, 2, sampling);
    EXPECT_EQ(four.copies_to_host, 4);
    EXPECT_EQ(four.bytes_to_host, 4 * 8) << "a number each, and no logits";
    EXPECT_EQ(four.waits(), 4);
    EXPECT_EQ((generating(3, 6, sampling) - generating(3, 2, sampling)).waits(), 4);
  }
}

// Weights on the host are copied without waits, for any number of weights. With a disk, the host waits for copies from
// buffers before the disk fills these again.
TEST_F(WaitsOnTrap, WaitsPerTokenIndependentlyOfStreamedWeights) {
  const test::TemporaryFolder folder;
  run::MemoryConfig host, both, all;
  host.host = both.host = 64 << 20;
  both.device = 24 << 10;  // holds some parameters, which take 4 KiB each
  all.host = 12 << 10, all.disk = folder.path();
  for (const int64_t layers : {1, 3}) {
    const auto four = [&](const run::MemoryConfig& memory) {
      return generating(layers, 6, {}, memory) - generating(layers, 2, {}, memory);
    };
    for (const run::MemoryConfig& memory : {host, both}) {
      const test::TrapCounts counts = four(memory);
      EXPECT_EQ(counts.waits(), 4) << layers << " layers: " << counts;
      EXPECT_GE(counts.copies_not_awaited, 4 * layers) << layers << " layers: " << counts;
    }
    const test::TrapCounts counts = four(all);
    EXPECT_GE(counts.copies_not_awaited, 4 * layers) << layers << " layers: " << counts;
    EXPECT_EQ(counts.waits() - counts.copies_awaited, 4) << layers << " layers: " << counts;
  }
}

}  // namespace
}  // namespace colossal::train::waits_trap_test
