// Steps with a loss that the caller supplies, and passes that return its results.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/models/registry.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/ops/activation.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/decorated_world.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::own_loss_test {
namespace {

using models::Model;
using models::ModelShape;
using models::States;
using testing::HasSubstr;

constexpr double kBound = 1e-12;  // relative error of one step in fp64

struct Layout {
  std::string name;
  int64_t data = 1, zero = 0, accumulate = 1;
  parallel::TensorConfig tensor{};
  parallel::SequenceConfig sequence{};
  parallel::PipelineConfig pipeline{};
  std::string recompute = "none";
};

std::vector<Layout> layouts() {
  return {{.name = "data2", .data = 2},
          {.name = "data2_zero1", .data = 2, .zero = 1},
          {.name = "data2_zero3_recomputed", .data = 2, .zero = 3, .recompute = "block"},
          {.name = "accumulated", .accumulate = 4},
          {.name = "tensor2", .tensor = {.size = 2}},
          {.name = "tensor2_sequence", .tensor = {.size = 2, .sequence = true}},
          {.name = "grid4", .tensor = {.size = 4, .mode = "2d"}},
          {.name = "cube8", .tensor = {.size = 8, .mode = "3d"}},
          {.name = "ring2", .sequence = {2, "ring"}},
          {.name = "pipeline2", .pipeline = {.size = 2, .micro_batches = 4}},
          {.name = "pipeline2_zero_bubble", .pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 4}},
          {.name = "pipeline2_v", .pipeline = {.size = 2, .schedule = "zero-bubble-v", .micro_batches = 4}},
          {.name = "all", .data = 2, .zero = 1, .tensor = {.size = 2}, .pipeline = {.size = 2, .micro_batches = 2}}};
}

run::Config config_of(const Layout& layout) {
  run::Config c = test::course_config();
  c.optimizer.epsilon = 1e-3;  // a gradient that is zero except for rounding must not become a whole step
  c.parallel.data = layout.data;
  c.parallel.zero = layout.zero;
  c.parallel.tensor = layout.tensor;
  c.parallel.sequence = layout.sequence;
  c.parallel.pipeline = layout.pipeline;
  c.training.accumulate = layout.accumulate;
  c.memory.recompute = layout.recompute;
  return c;
}

ModelShape tied_shape() {
  ModelShape shape = test::tiny_gpt2();
  shape.layers = 4;
  return shape;
}

tensor::Batch own_batch(Engine& engine, int64_t step) { return test::own_batch(engine, step); }

at::Tensor cross_entropy(const Model& model, const States& end, const nn::ForwardContext& step) {
  return model.head->loss_sum(end.at(0), step.batch->at("labels"), step);
}

at::Tensor of_log_probabilities(const Model& model, const States& end, const nn::ForwardContext& step) {
  return -model.head->log_probabilities(end.at(0), step.batch->at("labels"), step).sum();
}

/// Losses and gradient norms of three steps on rank 0. Without `loss`, the run's own is used.
std::vector<double> course(const run::Config& config, const ModelShape& shape, const Engine::Loss& loss,
                           std::vector<at::Tensor>* parameters = nullptr) {
  std::vector<double> found;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    for (int64_t step = 0; step < 3; ++step) {
      const tensor::Batch batch = own_batch(*engine, step);
      engine->zero_grad();
      const auto labels = static_cast<double>(batch.at("labels").numel());
      const double lost = loss ? engine->train_step(batch, labels, loss) : engine->train_step(batch);
      const double norm = engine->step().gradient_norm;
      if (world.rank() == 0) found.insert(found.end(), {lost, norm});
    }
    if (parameters && world.rank() == 0)
      for (const nn::Parameter& p : engine->parameters()) parameters->push_back(p.value.detach().clone());
  });
  return found;
}

TEST(OwnLoss, EqualsTheRunsStepBitwise) {
  for (const char* mode : {"fp64", "fp32", "bf16"})
    for (const int64_t accumulate : {1, 2}) {
      SCOPED_TRACE(concat(mode, ", accumulate ", accumulate));
      run::Config config = config_of({.name = "one", .accumulate = accumulate});
      config.precision.mode = mode;
      std::vector<at::Tensor> want, got;
      const std::vector<double> losses = course(config, tied_shape(), {}, &want);
      EXPECT_EQ(course(config, tied_shape(), cross_entropy, &got), losses);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
    }
}

class OwnLossLayouts : public testing::TestWithParam<Layout> {};

// The embedding is tied, so its weight also gets gradients from slices of the head.
TEST_P(OwnLossLayouts, StepLikeOneProcess) {
  static const std::vector<double> want = course(config_of({.name = "one"}), tied_shape(), {});
  for (const Engine::Loss& loss : {Engine::Loss(cross_entropy), Engine::Loss(of_log_probabilities)}) {
    const std::vector<double> got = course(config_of(GetParam()), tied_shape(), loss);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], (i < 2 ? kBound : 1e-10) * want[i]) << "number " << i;
  }
}

/// Losses and gradient norms of two steps with two passes each, on rank 0.
std::vector<double> course_of_two_passes(const run::Config& config) {
  std::vector<double> found;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, tied_shape());
    for (int64_t step = 0; step < 2; ++step) {
      engine->zero_grad();
      for (int64_t pass = 0; pass < 2; ++pass) {
        const tensor::Batch batch = own_batch(*engine, 2 * step + pass);
        const double lost = engine->train_step(batch, static_cast<double>(batch.at("labels").numel()), cross_entropy);
        if (world.rank() == 0) found.push_back(lost);
      }
      const double norm = engine->step().gradient_norm;
      if (world.rank() == 0) found.push_back(norm);
    }
  });
  return found;
}

TEST_P(OwnLossLayouts, AddUpTwoPassesLikeOneProcess) {
  static const std::vector<double> want = course_of_two_passes(config_of({.name = "one"}));
  for (const int64_t zero : {0, 1, 2}) {
    Layout layout = GetParam();
    layout.zero = zero;
    const std::vector<double> got = course_of_two_passes(config_of(layout));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-10 * want[i]) << "zero " << zero << ", number " << i;
  }
}

/// Results of a pass over the first batch, on one rank of the last stage, and on rank 0.
struct Passed {
  std::vector<at::Tensor> last, first;
};

Passed passed(const Layout& layout, const Engine::Loss& result, int64_t rows) {
  Passed found;
  std::mutex mutex;
  const run::Config config = config_of(layout);
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, tied_shape());
    const std::vector<at::Tensor> results = engine->forward(test::batch_of(0, 0, 1).part(0, rows), result);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) found.first = results;
    if (!results.empty()) found.last = results;
  });
  return found;
}

at::Tensor per_token(const Model& model, const States& end, const nn::ForwardContext& step) {
  return model.head->log_probabilities(end.at(0), step.batch->at("labels"), step);
}

TEST_P(OwnLossLayouts, ReturnResultsOfEachMicroBatch) {
  Layout layout = GetParam();
  layout.data = 1, layout.zero = 0;
  const std::vector<at::Tensor> want = passed({.name = "one"}, per_token, 8).last;
  ASSERT_EQ(want.size(), 1u);
  const int64_t parts = layout.pipeline.size > 1 ? layout.pipeline.micro_batches : 1;
  const Passed got = passed(layout, per_token, 8);
  ASSERT_EQ(static_cast<int64_t>(got.last.size()), parts);
  for (const at::Tensor& part : got.last) {
    EXPECT_FALSE(part.requires_grad());
    EXPECT_EQ(part.size(0), 8 / parts);
  }
  EXPECT_NO_THROW(test::expect_within(at::cat(got.last), want.front(), kBound * want.front().abs().max().item<double>(),
                                      "log-probabilities"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, OwnLossLayouts, testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

TEST(EngineForward, UsesOneMicroBatchForIndivisibleRows) {
  const Layout layout{.name = "pipeline2", .pipeline = {.size = 2, .micro_batches = 4}};
  const Passed all = passed(layout, per_token, 8), few = passed(layout, per_token, 3);
  EXPECT_TRUE(all.first.empty());
  EXPECT_EQ(all.last.size(), 4u);
  EXPECT_EQ(few.last.size(), 1u);
}

TEST(EngineForward, LeavesStepsUnchanged) {
  const auto losses = [](bool passes) {
    std::vector<double> found;
    comm::run_ranks(2, [&](comm::World& world) {
      ModelShape shape = tied_shape();
      shape.dropout = 0.2;
      const auto engine = initialize(world, config_of({.name = "zero3", .data = 2, .zero = 3}), shape);
      for (int64_t step = 0; step < 2; ++step) {
        if (passes) engine->forward(own_batch(*engine, step), per_token);
        const double lost = test::train_step(*engine, step);
        if (world.rank() == 0) found.push_back(lost);
      }
    });
    return found;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST(OwnLoss, DropsOtherElementsInEachPass) {
  comm::run_ranks(1, [](comm::World& world) {
    ModelShape shape = tied_shape();
    shape.dropout = 0.2;
    const auto engine = initialize(world, config_of({.name = "one"}), shape);
    const tensor::Batch batch = own_batch(*engine, 0);
    engine->zero_grad();
    const double first = engine->train_step(batch);
    EXPECT_NE(engine->train_step(batch), first);
    engine->zero_grad();
    EXPECT_EQ(engine->train_step(batch), first);
  });
}

/// A network without a head, whose last layer is its outputs.
Model make_network(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"ids"};
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at("ids"), step);
  };
  models::add_transformer_blocks(model, s, {.activation = ops::gelu}, layers);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  std::shared_ptr<nn::Outputs> outputs = layers.outputs("head.values", s.hidden, 2, {});
  model.norm = [=](const at::Tensor& x, const nn::ForwardContext& step) {
    return outputs->forward(norm->forward(x), step);
  };
  return model;
}

ModelShape network() {
  ModelShape shape = test::tiny_gpt2();
  shape.layers = 4;
  shape.tied = false;
  shape.architecture =
      std::make_shared<models::Architecture>(models::Architecture{.name = "network", .make = make_network});
  return shape;
}

/// Rows with two targets each.
tensor::Batch with_targets(tensor::Batch batch) {
  const at::Tensor targets = batch.at("ids").narrow(1, 0, 2).to(at::kDouble) / 10;
  batch.add("targets", {targets, {tensor::Dim::Row, tensor::Dim::Other}});
  return batch;
}

at::Tensor squared(const Model&, const States& end, const nn::ForwardContext& step) {
  return (end.at(0).mean(1) - step.batch->at("targets")).square().sum();
}

std::vector<double> regression(const Layout& layout) {
  std::vector<double> found;
  const run::Config config = config_of(layout);
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, network());
    for (int64_t step = 0; step < 3; ++step) {
      const tensor::Batch batch = with_targets(own_batch(*engine, step));
      engine->zero_grad();
      const double lost = engine->train_step(batch, static_cast<double>(batch.rows()), squared);
      const double norm = engine->step().gradient_norm;
      if (world.rank() == 0) found.insert(found.end(), {lost, norm});
    }
  });
  return found;
}

TEST_P(OwnLossLayouts, TrainANetworkWithoutAHead) {
  static const std::vector<double> want = regression({.name = "one"});
  const std::vector<double> got = regression(GetParam());
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], (i < 2 ? kBound : 1e-10) * want[i]) << "number " << i;
}

// A group that is made within a step would wait for ranks that still compute.
TEST(OwnLoss, MakesNoGroupsInSteps) {
  for (const Layout& layout : {Layout{.name = "tensor2_sequence", .tensor = {.size = 2, .sequence = true}},
                               Layout{.name = "grid4", .tensor = {.size = 4, .mode = "2d"}},
                               Layout{.name = "ring2", .sequence = {2, "ring"}}}) {
    const run::Config config = config_of(layout);
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      std::vector<std::string> made;
      test::DecoratedWorld watched(world, [&](std::shared_ptr<comm::Group> group) {
        made.push_back(group->name());
        return group;
      });
      const auto engine = initialize(watched, config, network());
      EXPECT_FALSE(made.empty());
      made.clear();
      const tensor::Batch batch = with_targets(own_batch(*engine, 0));
      engine->zero_grad();
      engine->train_step(batch, 1, squared);
      engine->step();
      engine->forward(batch, squared);
      EXPECT_TRUE(made.empty()) << layout.name << ": " << made.front();
    });
  }
}

TEST(OwnLoss, DividesLossAndGradientsByTheWeight) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine = initialize(world, config_of({.name = "one"}), network());
    const tensor::Batch batch = with_targets(own_batch(*engine, 0));
    const auto step = [&](double weight) {
      engine->zero_grad();
      const double lost = engine->train_step(batch, weight, squared);
      return std::pair(lost, engine->parameters().at("norm.weight").value.grad().clone());
    };
    const auto [whole, gradient] = step(1);
    for (const double weight : {0.25, 8.0}) {  // powers of 2, so that no product rounds
      const auto [lost, own] = step(weight);
      EXPECT_EQ(lost, whole / weight);
      EXPECT_TRUE(at::equal(own, gradient / weight)) << weight;
    }
    EXPECT_EQ(step(0).first, whole);
  });
}

TEST(OwnLoss, RefusesInvalidCallsBeforeMessages) {
  for (const Layout& layout : {Layout{.name = "data2", .data = 2, .accumulate = 2},
                               Layout{.name = "pipeline2", .pipeline = {.size = 2, .micro_batches = 2}}})
    comm::run_ranks(2, [&](comm::World& world) {
      const auto engine = initialize(world, config_of(layout), network());
      const auto sent = [&] { return world.traffic().total().calls; };
      const int64_t before = sent();
      const tensor::Batch batch = with_targets(own_batch(*engine, 0));
      const auto refused = [&](const tensor::Batch& b, double weight) {
        return test::thrown_message([&] { engine->train_step(b, weight, squared); });
      };
      const std::string of_weight = "[training] the weight of a batch must be a finite number of 0 or more: got ";
      EXPECT_THAT(refused(batch, -1), HasSubstr(of_weight + "-1"));
      EXPECT_THAT(refused(batch, std::numeric_limits<double>::quiet_NaN()), HasSubstr(of_weight));
      EXPECT_THAT(refused(batch.part(0, 3), 1),
                  HasSubstr("[data] the rows of a batch must be divisible by 2, the 2 micro-batches of a step * the 1 "
                            "parts of the tensor mode: got 3"));
      tensor::Batch without;
      without.add("targets", batch.field("targets"));
      EXPECT_THAT(refused(without, 1), HasSubstr("ids"));
      EXPECT_THAT(test::thrown_message([&] { engine->forward(without, squared); }), HasSubstr("ids"));
      const std::string no_head = "[objective] the objective of the run needs a model with a head: got one without";
      EXPECT_THAT(test::thrown_message([&] { engine->train_step(batch); }), HasSubstr(no_head));
      EXPECT_THAT(test::thrown_message([&] { engine->evaluate(batch); }), HasSubstr(no_head));
      EXPECT_EQ(sent(), before);
    });
}

TEST(OwnLoss, RefusesLossesOfSeveralNumbers) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto engine = initialize(world, config_of({.name = "one"}), network());
    const tensor::Batch batch = with_targets(own_batch(*engine, 0));
    const auto refused = [&](const Engine::Loss& loss) {
      engine->zero_grad();
      return test::thrown_message([&] { engine->train_step(batch, 1, loss); });
    };
    const std::string rule = "[training] the loss of a micro-batch must be one number: got ";
    EXPECT_THAT(refused([](const Model&, const States& end, const nn::ForwardContext&) { return end.at(0); }),
                HasSubstr(rule + "a tensor [8, 6, 2]"));
    EXPECT_THAT(refused([](const Model&, const States&, const nn::ForwardContext&) { return at::Tensor(); }),
                HasSubstr(rule + "none"));
  });
}

}  // namespace
}  // namespace colossal::train::own_loss_test
