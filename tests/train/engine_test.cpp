// Guarantees of the engine besides parity: what it refuses, and that seeds and layouts do not affect unrelated results.
#include "colossal/train/engine.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "support/decorated_world.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::engine_test {
namespace {

run::Config config_of(int64_t data, int64_t tensor, int64_t batch) {
  run::Config c;
  c.parallel.data = data;
  c.parallel.tensor.size = tensor;
  c.training.batch_size = batch;
  return c;
}

TEST(Config, NamesTheNearestBatchSizes) {
  run::Config c = config_of(4, 1, 18);
  c.training.accumulate = 2;
  EXPECT_EQ(test::thrown_message([&] { c.validate(); }),
            "[training] batch_size must be divisible by parallel.data * training.accumulate: got 18, 4 * 2; the "
            "nearest are 16 and 24");
}

TEST(Initialize, RefusesMismatchedNumbersOfRanks) {
  const std::string message = test::thrown_message(
      [] { comm::run_ranks(3, [](comm::World& world) { initialize(world, config_of(2, 2, 4), test::tiny_gpt2()); }); });
  EXPECT_NE(message.find("[parallel] the number of ranks must be the product of the layout's sizes: got 3 ranks, "
                         "pipeline 1 * data 2 * sequence 1 * tensor 2 = 4"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("(rank "), std::string::npos) << message;
}

TEST(Initialize, RefusesRecordedPassesOfMixtures) {
  run::Config config = config_of(1, 1, 2);
  config.training.cuda_graph = true;
  const auto mixture = models::built_in().resolve({.name = "gpt2-tiny", .own = models::own_keys({"experts.count=4"})});
  const std::string message = test::thrown_message(
      [&] { comm::run_ranks(1, [&](comm::World& world) { initialize(world, config, mixture); }); });
  EXPECT_NE(message.find("[training] cuda_graph needs a dense model, because each pass of a mixture of experts has "
                         "other sizes: got 4 experts; set training.cuda_graph = false"),
            std::string::npos)
      << message;
}

TEST(Initialize, RefusesExpertRanksForADenseModelBeforeMessages) {
  comm::run_ranks(4, [](comm::World& world) {
    run::Config config = config_of(2, 1, 4);
    config.parallel.expert.size = 2;
    EXPECT_EQ(test::thrown_message([&] { initialize(world, config, test::tiny_gpt2()); }),
              "[parallel] expert needs a mixture of experts: got expert.size 2 for a dense model; set "
              "model.experts.count, or leave parallel.expert out");
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

TEST(Initialize, RefusesExpertsThatDoNotDivideBeforeMessages) {
  const auto mixture = models::built_in().resolve({.name = "gpt2-tiny", .own = models::own_keys({"experts.count=6"})});
  comm::run_ranks(4, [&](comm::World& world) {
    run::Config config = config_of(1, 1, 4);
    config.parallel.expert.size = 4;
    EXPECT_EQ(test::thrown_message([&] { initialize(world, config, mixture); }),
              "[experts] count must divide by parallel.expert.size: got 6 experts on 4 ranks; the nearest are 4 and 8");
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

TEST(Initialize, NamesExpertRanksInTheProduct) {
  const std::string message = test::thrown_message([] {
    comm::run_ranks(2, [](comm::World& world) {
      run::Config config = config_of(2, 1, 4);
      config.parallel.expert.size = 2;
      initialize(world, config, test::tiny_gpt2());
    });
  });
  EXPECT_NE(message.find("got 2 ranks, pipeline 1 * data 2 * expert 2 * sequence 1 * tensor 1 = 4"), std::string::npos)
      << message;
}

tensor::Batch batch_of(int64_t rows, int64_t sequence, int64_t token) {
  const auto ids = at::TensorOptions().dtype(at::kLong);
  return data::text_batch(at::full({rows, sequence}, token, ids), at::full({rows, sequence}, token, ids),
                          at::arange(sequence, ids).expand({rows, sequence}).contiguous());
}

TEST(Engine, RefusesUnknownTokensAndLengths) {
  comm::run_ranks(1, [](comm::World& world) {
    auto engine = initialize(world, config_of(1, 1, 2), test::tiny_gpt2());
    EXPECT_NE(test::thrown_message([&] { engine->train_step(batch_of(2, 4, 43)); }).find("vocabulary of 43: got 43"),
              std::string::npos);
    EXPECT_NE(test::thrown_message([&] { engine->train_step(batch_of(2, 4, -1)); }).find("got -1"), std::string::npos);
    EXPECT_NE(test::thrown_message([&] { engine->train_step(batch_of(2, 17, 1)); }).find("got 17 tokens, 16 positions"),
              std::string::npos);
  });
}

// A group that is made within a step would wait for ranks that still compute.
TEST(Engine, MakesAllGroupsBeforeTheFirstStep) {
  const auto layout = [](int64_t pipeline, int64_t data, int64_t tensor, int64_t zero) {
    run::Config c = config_of(data, tensor, 4 * data);
    c.parallel.pipeline.size = pipeline;
    if (pipeline > 1) c.parallel.pipeline.micro_batches = 2;
    c.parallel.zero = zero;
    return c;
  };
  for (const run::Config& config : {layout(2, 2, 1, 0), layout(1, 2, 2, 3), layout(2, 1, 2, 0), layout(1, 2, 1, 2)}) {
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      std::vector<std::string> made;
      test::DecoratedWorld watched(world, [&](std::shared_ptr<comm::Group> group) {
        made.push_back(group->name());
        return group;
      });
      auto engine = initialize(watched, config, test::tiny_gpt2());
      EXPECT_FALSE(made.empty());
      made.clear();
      const tensor::Batch batch = batch_of(4, 4, 1);
      engine->zero_grad();
      engine->train_step(batch);
      engine->step();
      engine->evaluate(batch);
      EXPECT_TRUE(made.empty()) << made.front();
    });
  }
}

TEST(Engine, DropsTheSameElementsInMicroBatches) {
  comm::run_ranks(1, [](comm::World& world) {
    models::ModelShape shape = test::tiny_gpt2();
    shape.dropout = 0.5;
    std::vector<double> losses;
    for (const int64_t micro_batches : {1, 2, 4}) {
      run::Config config = config_of(1, 1, 4);
      config.precision.mode = "fp64";
      config.training.accumulate = micro_batches;
      auto engine = initialize(world, config, shape);
      engine->zero_grad();
      losses.push_back(engine->train_step(batch_of(4, 8, 7)));
    }
    EXPECT_NEAR(losses[1], losses[0], 1e-10);
    EXPECT_NEAR(losses[2], losses[0], 1e-10);
  });
}

// A mask depends on the index of the row in the global batch, so each replica must know where its rows are.
TEST(Engine, DropsTheSameElementsOnReplicasWithMicroBatches) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.dropout = 0.5;
  const auto loss_of = [&](int64_t data, int64_t micro_batches) {
    double loss = 0;
    comm::run_ranks(static_cast<int>(data), [&](comm::World& world) {
      run::Config config = config_of(data, 1, 8);
      config.precision.mode = "fp64";
      config.training.accumulate = micro_batches;
      auto engine = initialize(world, config, shape);
      engine->zero_grad();
      const test::ParityCase rows{.shape = shape, .batch = 8};
      const double mean = engine->train_step(engine->replica_rows(8).of(test::random_batch(rows, 0)));
      if (world.rank() == 0) loss = mean;
    });
    return loss;
  };
  const double want = loss_of(1, 1);
  for (const int64_t data : {1, 2, 4})
    for (const int64_t micro_batches : {1, 2})
      EXPECT_NEAR(loss_of(data, micro_batches), want, 1e-10) << data << " replicas, " << micro_batches;
}

TEST(Engine, CountsStepsWithoutLabels) {
  comm::run_ranks(2, [](comm::World& world) {
    auto engine = initialize(world, config_of(2, 1, 2), test::tiny_gpt2());
    const tensor::Batch batch = batch_of(1, 4, 1);
    batch.at("labels").fill_(data::kIgnored);
    engine->zero_grad();
    EXPECT_EQ(engine->train_step(batch), 0);
    EXPECT_EQ(engine->step().gradient_norm, 0);
  });
}

TEST(Engine, StopsOnNonFiniteGradients) {
  comm::run_ranks(1, [](comm::World& world) {
    auto engine = initialize(world, config_of(1, 1, 2), test::tiny_gpt2());
    engine->parameters().at("norm.weight").value.detach().fill_(std::numeric_limits<double>::infinity());
    engine->zero_grad();
    engine->train_step(batch_of(2, 4, 1));
    EXPECT_NE(test::thrown_message([&] { engine->step(); }).find("gradient of step 1 is not finite"),
              std::string::npos);
  });
}

// The losses of ten steps decrease on a text that can be learnt, so all parts work together.
TEST(Engine, LearnsAConstantText) {
  comm::run_ranks(2, [](comm::World& world) {
    run::Config c = config_of(1, 2, 4);
    c.optimizer.warmup_steps = 0;
    c.optimizer.learning_rate = 0.01;
    auto engine = initialize(world, c, test::tiny_llama());
    double first = 0, last = 0;
    for (int i = 0; i < 20; ++i) {
      engine->zero_grad();
      last = engine->train_step(batch_of(4, 8, 7));
      if (i == 0) first = last;
      engine->step();
    }
    EXPECT_NEAR(first, std::log(37.0), 0.2);
    EXPECT_LT(last, 0.5);
  });
}

}  // namespace
}  // namespace colossal::train::engine_test
