// The operations that layers announce in a training step equal the published formula, and sum over ranks to its result.
#include "colossal/tensor/flops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "colossal/comm/run_ranks.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/families/vit.h"
#include "colossal/models/registry.h"
#include "colossal/models/task.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/report/metrics.h"
#include "colossal/train/engine.h"
#include "colossal/train/trainer.h"
#include "support/parity.h"
#include "support/temporary_folder.h"

namespace colossal::train::flops_test {
namespace {

constexpr int64_t kRows = 8, kSequence = 6;

/// Sizes that divide evenly under every layout below, because padding is computed too.
models::ModelShape even_gpt2() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.vocabulary = shape.ffn = 48;
  shape.layers = 4;
  return shape;
}

models::ModelShape even_llama() {
  models::ModelShape shape = test::tiny_llama();
  shape.vocabulary = 48;
  shape.ffn = 24;
  shape.kv_heads = shape.layers = 4;
  return shape;
}

models::ModelShape even_vit() {
  models::ModelShape shape = test::tiny_vit();
  shape.ffn = 48;
  return shape;
}

/// Each of six tokens sees itself and the two before it.
models::ModelShape windowed_llama() {
  models::ModelShape shape = even_llama();
  shape.own = models::LlamaSizes{.window = 3};
  return shape;
}

models::ModelShape even_bert(const std::string& objective = "masked-token") {
  models::ModelShape shape = test::tiny_bert(objective);
  shape.vocabulary = shape.ffn = 48;
  return shape;
}

/// Returns the number of tokens of a sample that are multiplied by the matrix with this name.
double tokens_through(const std::string& name, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  if (name.starts_with("blocks."))
    return static_cast<double>(task.reads == models::Reads::Images ? shape.positions : kSequence);
  if (name.starts_with("patches.")) return static_cast<double>(shape.positions - 1);
  const bool is_head = name.starts_with("head.") || (shape.tied && name == "embedding.weight");
  return !is_head ? 0 : task.classes > 0 ? 1 : static_cast<double>(kSequence);
}

/// Returns the number of pairs of a token and one that it sees.
int64_t pairs_of(const models::ModelShape& shape) {
  const models::Task task = shape.task();
  if (task.reads == models::Reads::Images) return shape.positions * shape.positions;
  if (!task.generates()) return kSequence * kSequence;
  const bool is_llama = shape.architecture->name == "llama";
  const int64_t window = is_llama ? shape.own.as<models::LlamaSizes>().window : 0;
  int64_t pairs = 0;
  for (int64_t i = 1; i <= kSequence; ++i) pairs += window > 0 ? std::min(i, window) : i;
  return pairs;
}

/// Returns the operations for a sample: 6 per matrix element and token multiplied by it, and 12 per feature of a head
/// and pair of tokens (PaLM, arXiv:2204.02311, appendix B, which counts half of the square for a causal mask). A third
/// of the product with patches is left out, because images need no gradient.
double formula(const models::ModelShape& shape) {
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  double sum = 12.0 * static_cast<double>(shape.layers * shape.heads * shape.head_dim * pairs_of(shape));
  for (const nn::Parameter& p : parameters)
    if (p.spec.shape.size() > 1)
      sum += (p.name.starts_with("patches.") ? 4 : 6) * tokens_through(p.name, shape) *
             static_cast<double>(p.spec.numel());
  return sum;
}

/// Returns the operations that all ranks together announce in a step on kRows samples.
double announced(const models::ModelShape& shape, const distributed::ParallelConfig& parallel,
                 const std::string& recompute = "none") {
  double sum = 0;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(parallel.ranks()), [&](comm::World& world) {
    run::Config config;
    config.parallel = parallel;
    config.memory.recompute = recompute;
    config.training.batch_size = kRows;
    auto engine = initialize(world, config, shape);
    engine->zero_grad();
    const tensor::FlopCount count;
    engine->train_step(test::batch_of_ones(shape, kRows / parallel.data, kSequence));
    engine->step();
    const std::lock_guard lock(mutex);
    sum += count.total();
  });
  return sum;
}

distributed::ParallelConfig with(const parallel::TensorConfig& tensor, int64_t data = 1,
                                 const parallel::PipelineConfig& pipeline = {}, int64_t zero = 0) {
  distributed::ParallelConfig config;
  config.tensor = tensor;
  config.data = data;
  config.pipeline = pipeline;
  config.zero = zero;
  return config;
}

TEST(Flops, EqualTheFormulaOnOneProcess) {
  for (const models::ModelShape& shape :
       {even_gpt2(), even_llama(), windowed_llama(), even_vit(), even_bert(), even_bert("class")}) {
    EXPECT_EQ(announced(shape, {}), kRows * formula(shape)) << shape.architecture->name;
    const models::Costs costs = models::costs_of(shape, models::example_batch(shape, 1, kSequence));
    EXPECT_EQ(costs.sum() - costs.first / 3, formula(shape)) << shape.architecture->name;
    EXPECT_EQ(static_cast<int64_t>(costs.blocks.size()), shape.layers);
  }
  EXPECT_LT(formula(windowed_llama()), formula(even_llama()));
}

TEST(Flops, AddUpOverRanks) {
  for (const models::ModelShape& shape : {even_gpt2(), even_llama()})
    for (const auto& parallel :
         {with({.size = 2}), with({.size = 4}), with({.size = 4, .mode = "2d"}),
          with({.size = 8, .mode = "2.5d", .depth = 2}), with({.size = 8, .mode = "3d"}), with({}, 4, {}, 3),
          with({}, 2, {.size = 2, .micro_batches = 2}), with({}, 1, {.size = 2, .schedule = "zero-bubble-v"}),
          with({.size = 2}, 2, {.size = 2, .schedule = "chimera"}, 1)})
      EXPECT_EQ(announced(shape, parallel), kRows * formula(shape))
          << shape.architecture->name << ", tensor " << parallel.tensor.size << " " << parallel.tensor.mode << ", data "
          << parallel.data << ", pipeline " << parallel.pipeline.size;
  // Patches and classes are whole on every rank if features are not split between layers.
  EXPECT_EQ(announced(even_vit(), with({.size = 4, .mode = "2d"}, 2)), kRows * formula(even_vit()));
}

TEST(Flops, IncludeRecomputedLayers) {
  models::ModelShape more = even_gpt2();
  ++more.layers;
  const double block = formula(more) - formula(even_gpt2());
  EXPECT_EQ(announced(even_gpt2(), {}, "block") - announced(even_gpt2(), {}),
            kRows * static_cast<double>(even_gpt2().layers) * block / 3);
}

TEST(Flops, LeaveOutTheShareOfThePeakIfUnknown) {
  models::Architecture row = *models::built_in().at("gpt2");
  row.name = "positive";
  row.hugging_face = {};
  row.presets = {{"positive-tiny", test::tiny_gpt2()}};
  row.make = [](const models::ModelShape& s, nn::Layers& layers) {
    models::Model model = models::built_in().at("gpt2")->make(s, layers);
    model.blocks.back() = [block = model.blocks.back()](const at::Tensor& x, const nn::ForwardContext& step) {
      return block(x, step).abs();  // an operator that LibTorch cannot run on shapes alone
    };
    return model;
  };
  const test::TemporaryFolder folder;
  run::Config c;
  c.run.folder = folder / "run";
  c.run.device = "cpu";
  c.run.matmul = "mkl";
  c.model.name = "positive-tiny";
  c.data.path = folder.write("text.txt", std::string(500, 'a'));
  c.data.sequence = kSequence;
  c.training = {.steps = 2, .batch_size = 2, .evaluate_batches = 0};
  c.optimizer.warmup_steps = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    TrainerOptions options;
    options.program.models.add(row);
    Trainer trainer(world, c, options);
    EXPECT_TRUE(trainer.run());
    trainer.write_report();
  });
  const auto contains = [&](const char* file, const char* words) {
    return test::read_all(c.run.folder + file).find(words) != std::string::npos;
  };
  EXPECT_TRUE(contains("/log-rank-0.txt", "aten::abs"));
  EXPECT_TRUE(contains("/log-rank-0.txt", "the run continues without reporting the share of the peak"));
  const auto steps = report::read_metrics(c.run.folder + "/metrics.jsonl");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_FALSE(steps.find("mfu"));
  EXPECT_TRUE(contains("/report.html", "tokens per second"));
  EXPECT_FALSE(contains("/report.html", "of the matmul peak"));
}

}  // namespace
}  // namespace colossal::train::flops_test
