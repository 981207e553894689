// Recorded passes (tensor/graph.h, [training] cuda_graph) on the trap device, whose replays give wrong numbers if the
// host put values into the recording.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batches.h"
#include "colossal/models/registry.h"
#include "colossal/nn/parameter.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/counted_rows.h"
#include "colossal/ops/linear_token_scores.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/graph.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/reporter.h"
#include "support/trap_device.h"
#include "support/trap_graph.h"
#include "support/trap_kernels.h"

namespace colossal::train::graph_trap_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

at::TensorOptions on_trap() { return at::TensorOptions().dtype(at::kDouble).device(test::trap_device()); }

double number(const at::Tensor& x) { return test::peek(x).item<double>(); }

TEST(GraphOnTrap, RecordsFirstAndComputesInTheReplay) {
  const test::TrapGraphs graphs;
  const at::Tensor x = at::full({}, 2, on_trap()), sum = at::full({}, 100, on_trap());
  at::Tensor y;
  double of_the_host = 5;
  const auto graph = tensor::capture(test::trap_device(), [&] {
    y = x * x + of_the_host;
    sum.add_(y);
  });
  EXPECT_TRUE(std::isnan(number(y))) << "a recording computes nothing";
  EXPECT_EQ(number(sum), 100) << "nor does it write";
  of_the_host = 6;
  for (const double value : {3, 4}) {
    x.fill_(value);
    graph->replay();
    EXPECT_EQ(number(y), value * value + 5) << "the host's number is that of the recording";
  }
  EXPECT_EQ(number(sum), 100 + 14 + 21);
  EXPECT_EQ(graphs.captures(), 1);
  EXPECT_EQ(graphs.replays(), 2);
}

TEST(GraphOnTrap, RecordsBackwardAndOurKernels) {
  const test::TrapGraphs graphs;
  const test::TrapKernels kernels;
  const at::Tensor x = at::full({3, 8}, 0.5, on_trap()).requires_grad_(), scale = at::ones({}, on_trap());
  x.mutable_grad() = at::zeros({3, 8}, on_trap());
  const auto run = [&] { ops::swiglu(x * scale, x).sum().backward(); };
  const auto graph = tensor::capture(test::trap_device(), run);
  EXPECT_EQ(number(x.grad().sum()), 0);
  EXPECT_GT(kernels.launches(), 0);
  for (const double factor : {1, 3}) {
    scale.fill_(factor);
    x.grad().zero_();
    run();
    const at::Tensor want = test::peek(x.grad());
    x.grad().zero_();
    graph->replay();
    EXPECT_TRUE(at::equal(test::peek(x.grad()), want)) << factor;
  }
}

// All rows are kept, because a replay may have other labels, and reading them would wait.
TEST(GraphOnTrap, RecordsScoresOfAllRows) {
  const test::TrapGraphs graphs;
  const at::Tensor hidden = at::ones({4, 3}, on_trap()), weight = at::ones({5, 3}, on_trap()),
                   labels = at::full({4}, ops::kIgnoredLabel, on_trap().dtype(at::kLong));
  EXPECT_TRUE(ops::CountedRows(labels).chooses());
  at::Tensor sum;
  const auto graph = tensor::capture(test::trap_device(), [&] {
    EXPECT_TRUE(tensor::is_capturing());
    sum = ops::linear_token_scores(hidden, weight, {}, labels).log_probabilities.sum();
  });
  EXPECT_FALSE(tensor::is_capturing());
  for (const int64_t counted : {0, 3}) {
    labels.narrow(0, 0, counted).fill_(1);
    graph->replay();
    EXPECT_NEAR(number(sum), static_cast<double>(counted) * -std::log(5.0), 1e-14);
  }
}

TEST(GraphOnTrap, KeepsTheMemoryOfTheRecording) {
  const test::TrapGraphs graphs;
  const at::Tensor x = at::ones({1000}, on_trap());
  at::Tensor sum;
  const auto graph = tensor::capture(test::trap_device(), [&] { sum = (x * 2).sum(); });
  const at::Tensor taken = at::zeros({1000}, on_trap());  // would get the memory of x * 2 if the graph did not own it
  graph->replay();
  EXPECT_EQ(number(sum), 2000);
  EXPECT_EQ(number(taken.sum()), 0);
}

TEST(GraphOnTrap, RefusesOperationsThatWait) {
  const test::TrapGraphs graphs;
  const at::Tensor x = at::ones({3}, on_trap()), sum = at::zeros({}, on_trap());
  const auto refused = [&](const std::function<void()>& body) {
    EXPECT_THAT([&] { tensor::capture(test::trap_device(), [&] { sum.add_(1), body(); }); },
                ThrowsMessage<c10::Error>(HasSubstr("operation not permitted when stream is capturing")));
    EXPECT_EQ(number(sum), 0) << "what was recorded before is forgotten";
  };
  refused([&] { x.sum().item<double>(); });
  refused([&] { x.nonzero(); });
  refused([&] { x.cpu(); });
  refused([&] { x.copy_(at::ones({3}, at::kDouble)); });
  EXPECT_EQ(number(x.sum()), 3) << "and the device goes on";
}

TEST(GraphOnTrap, RefusesDevicesThatCannotRecord) {
  EXPECT_FALSE(tensor::can_capture(at::kPrivateUse1));
  EXPECT_FALSE(tensor::can_capture(at::kCPU));
  EXPECT_THAT([] { tensor::capture(at::kCPU, [] {}); }, ThrowsMessage<Error>(HasSubstr("cannot be recorded")));
}

struct Course {
  models::ModelShape shape = test::tiny_gpt2();
  std::string precision = "fp64", recompute = "none", clip_by = "norm";
  int64_t accumulate = 1, zero = 0;
  int data = 1;
  double loss_scale = 0;        ///< initial loss scale; 0 = the default
  int64_t documents_from = 99;  ///< steps from here on have two documents in each row
};

constexpr int64_t kSteps = 6;

/// The results of one rank.
struct Trace {
  std::vector<double> losses, norms;
  std::vector<bool> skipped;
  std::vector<std::vector<Metric>> rows;  ///< rows that layers report, for each step
  std::vector<at::Tensor> weights;
  double flops = 0;
  int64_t waits = 0;  ///< number of waits of the host in the last step
};

/// Returns part `part` of course.data of a batch. The inputs differ between steps, and so does the number of labels
/// that count.
tensor::Batch batch_of(const Course& course, int64_t step, int64_t part) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(77 + step));
  const tensor::Batch b = test::batch_of_ones(course.shape, 8, 6);
  const bool has_images = !b.has_tokens();
  if (has_images)
    b.at("images").normal_(0, 1, generator);
  else
    b.at("ids").random_(0, course.shape.vocabulary, generator);
  b.at("labels").random_(0, has_images ? 3 : course.shape.vocabulary, generator);
  b.at("labels").view({-1}).narrow(0, 0, step % 4).fill_(data::kIgnored);
  if (!has_images && step >= course.documents_from) b.at("documents").narrow(1, 2, 4).fill_(1);
  const int64_t rows = 8 / course.data;
  return data::pinned(b.part(part * rows, rows).map([](const tensor::Field& f) { return f.tensor.contiguous(); }));
}

run::Config config_of(const Course& course, bool graph) {
  run::Config config = test::course_config();
  config.training.cuda_graph = graph;
  config.training.accumulate = course.accumulate;
  config.training.clip_by = course.clip_by;
  config.training.clip = 0.1;
  config.optimizer.warmup_steps = 3;  // makes the learning rate differ between steps
  config.parallel.data = course.data;
  config.parallel.zero = course.zero;
  config.precision.mode = course.precision;
  if (course.precision == "fp16") config.precision.loss_scale_growth = 2;
  if (course.loss_scale > 0) config.precision.loss_scale = course.loss_scale;
  config.memory.recompute = course.recompute;
  return config;
}

std::vector<Trace> traces_of(const Course& course, bool graph) {
  std::vector<Trace> traces(static_cast<size_t>(course.data));
  comm::run_ranks(course.data, [&](comm::World& world) {
    Trace& trace = traces[static_cast<size_t>(world.rank())];
    const at::Device device = test::trap_device(world.local_rank());
    const auto engine = initialize(world, config_of(course, graph), course.shape, device);
    const tensor::FlopCount count;
    for (int64_t step = 0; step < kSteps; ++step) {
      const tensor::Batch batch = batch_of(course, step, world.rank());
      const test::TrapWaits waits(device);
      engine->zero_grad();
      trace.losses.push_back(engine->train_step(batch));
      const StepResult result = engine->step();
      trace.norms.push_back(result.gradient_norm);
      trace.skipped.push_back(result.skipped);
      trace.rows.push_back(result.rows);
      trace.waits = waits.counts().waits();
      if (step == 2) engine->evaluate(batch);
    }
    trace.flops = count.total();
    for (const nn::Parameter& parameter : engine->parameters()) trace.weights.push_back(test::peek(parameter.value));
  });
  return traces;
}

class GraphTraining : public testing::Test {
 protected:
  static void SetUpTestSuite() { test::trap_device(); }

  /// Expects recorded passes to be bitwise equal to passes whose operators are launched one by one. Returns the trace
  /// of rank 0 with recorded passes.
  Trace expect_same(const Course& course, const std::string& what, int64_t recorded_steps = kSteps) {
    const std::vector<Trace> want = traces_of(course, false);
    const test::TrapGraphs graphs;
    const std::vector<Trace> got = traces_of(course, true);
    EXPECT_EQ(graphs.captures(), course.data) << what << ": one a rank";
    // The operators of a run's first micro-batch are launched one by one.
    EXPECT_EQ(graphs.replays(), course.data * (recorded_steps * course.accumulate - 1)) << what;
    for (size_t rank = 0; rank < want.size(); ++rank) {
      EXPECT_EQ(got[rank].losses, want[rank].losses) << what;
      EXPECT_EQ(got[rank].norms, want[rank].norms) << what;
      EXPECT_EQ(got[rank].skipped, want[rank].skipped) << what;
      EXPECT_EQ(got[rank].rows, want[rank].rows) << what;
      EXPECT_EQ(got[rank].flops, want[rank].flops) << what << ": a replay announces what it computes";
      EXPECT_GT(got[rank].flops, 0) << what;
      for (size_t i = 0; i < want[rank].weights.size(); ++i)
        EXPECT_TRUE(at::equal(got[rank].weights[i], want[rank].weights[i])) << what << ", parameter " << i;
      EXPECT_NE(got[rank].losses[4], got[rank].losses[5]) << what;
    }
    return got.front();
  }
};

TEST_F(GraphTraining, TrainsModelsBitwiseEqually) {
  for (const auto& shape : {test::tiny_gpt2(), test::tiny_llama(), test::tiny_vit(), test::tiny_bert()})
    EXPECT_EQ(expect_same({.shape = shape, .accumulate = 2}, shape.architecture->name).waits, 1);
}

TEST_F(GraphTraining, SupportsEveryPrecisionAndRecomputation) {
  const models::ModelShape llama = test::tiny_llama();
  for (const std::string mode : {"fp32", "bf16", "fp8"})
    expect_same({.shape = llama, .precision = mode, .accumulate = 2}, mode);
  for (const std::string recompute : {"selective", "block"})
    expect_same({.shape = llama, .recompute = recompute}, recompute);
  expect_same({.clip_by = "value"}, "value");
}

// Two steps without an overflow double the scale, and a step with an overflow halves it.
TEST_F(GraphTraining, ReadsTheLossScaleInEveryStep) {
  const Trace trace = expect_same({.precision = "fp16", .accumulate = 2, .loss_scale = 0x1p18}, "fp16");
  EXPECT_THAT(trace.skipped, testing::Contains(true));
  EXPECT_THAT(trace.skipped, testing::Contains(false));
}

// A replay adds to the same values as passes that are launched one by one, and reads the loss scale of its step.
TEST_F(GraphTraining, ReportsTheSameValuesAndLossTerms) {
  const models::ModelShape reporter = test::tiny_reporter();
  const Trace trace = expect_same({.shape = reporter, .accumulate = 2}, "reports");
  EXPECT_EQ(trace.waits, 1) << "values are read with the losses";
  ASSERT_FALSE(trace.rows[4].empty());
  EXPECT_NE(trace.rows[4], trace.rows[5]);
  expect_same({.shape = reporter, .recompute = "block", .accumulate = 2, .data = 2}, "reports, block, data 2");
  EXPECT_THAT(
      expect_same({.shape = reporter, .precision = "fp16", .accumulate = 2, .loss_scale = 0x1p18}, "fp16").skipped,
      testing::Contains(true));
}

TEST_F(GraphTraining, SupportsOurKernels) {
  const test::TrapKernels kernels;
  expect_same({.shape = test::tiny_llama(), .accumulate = 2}, "fp64");
  EXPECT_GT(kernels.launches(), 0);
}

TEST_F(GraphTraining, SumsGradientsOfReplicasAfterTheReplay) {
  for (const int64_t zero : {0, 1}) {
    expect_same({.zero = zero, .data = 2}, concat("zero ", zero));
    expect_same({.precision = "bf16", .accumulate = 2, .zero = zero, .data = 2}, concat("zero ", zero, ", bf16"));
  }
}

TEST_F(GraphTraining, LaunchesRowsOfSeveralDocumentsDirectly) {
  expect_same({.shape = test::tiny_llama(), .accumulate = 2, .documents_from = 4}, "documents", 4);
}

TEST_F(GraphTraining, RefusesOptionsThatARecordingWouldFreeze) {
  const auto refused = [](const run::Config& config, const models::ModelShape& shape, const std::string& why) {
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      EXPECT_THAT([&] { initialize(world, config, shape, test::trap_device(world.local_rank())); },
                  ThrowsMessage<Error>(HasSubstr(why)));
    });
  };
  const run::Config one = config_of({}, true);
  refused(one, test::tiny_gpt2(), "cuda_graph needs a CUDA device: got trap:0");
  const test::TrapGraphs graphs;
  models::ModelShape dropping = test::tiny_gpt2();
  dropping.dropout = 0.1;
  refused(one, dropping, "cuda_graph needs a model without dropout");
  for (const int64_t zero : {2, 3})
    refused(config_of({.zero = zero, .data = 2}, true), test::tiny_gpt2(), concat("got ", zero));
  run::Config cut = one, split = one;
  cut.parallel.pipeline = {.size = 2, .micro_batches = 2};
  refused(cut, test::tiny_gpt2(), "got 2 ranks, parallel.data = 1");
  split.parallel.tensor = {.size = 2, .mode = "1d"};
  refused(split, test::tiny_gpt2(), "got 2 ranks, parallel.data = 1");
}

}  // namespace
}  // namespace colossal::train::graph_trap_test
