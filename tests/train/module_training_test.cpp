// A user-defined module, trained over ranks, compared with a plain torch loop in one process.
#include "colossal/train/module_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "colossal/base/config.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/optim/learning_rate.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::module_training_test {
namespace {

constexpr int64_t kWidth = 6, kRows = 12, kSteps = 5;

/// Five layers: one without a bias, one frozen, one never used; the first one's weight is used again under the name of
/// the last. Two buffers that forward uses and changes.
struct Foreign : torch::nn::Module {
  explicit Foreign(double phase = 0) {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(i != 1))));
    tied = register_parameter("tied", layers[0]->weight);
    scale = register_buffer("scale", at::full({kWidth}, 0.5 + phase, at::kFloat));
    calls = register_buffer("calls", at::full({}, static_cast<int64_t>(phase), at::kLong));
    layers[2]->weight.requires_grad_(false);
    const at::NoGradGuard no_grad;  // no random generator, because modules of several ranks are made concurrently
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.4).view(p.sizes()));
  }
  at::Tensor forward(at::Tensor x) {
    calls.add_(1);
    for (const int i : {0, 1, 2}) x = torch::tanh(layers[i]->forward(x));
    return torch::linear(x * scale, tied);
  }
  std::vector<torch::nn::Linear> layers;
  at::Tensor tied, scale, calls;
};

at::Tensor points(int64_t step) {
  return at::arange(kRows * kWidth, at::kDouble)
      .add(100.0 * static_cast<double>(step))
      .mul(0.37)
      .sin()
      .view({kRows, kWidth});
}

/// The mean over the rows of a part of a step's batch.
at::Tensor loss_of(Foreign& module, int64_t step, int64_t part, int64_t parts, at::ScalarType dtype) {
  const int64_t rows = kRows / parts;
  const at::Tensor x = points(step).narrow(0, part * rows, rows);
  return (module.forward(x.to(dtype)).to(dtype == at::kDouble ? at::kDouble : at::kFloat) - x.cos()).square().mean();
}

run::Config config_of(int64_t data, int64_t zero, const std::string& mode = "fp64", int64_t accumulate = 1) {
  run::Config c;
  c.run.device = "cpu";
  c.parallel.data = data;
  c.parallel.zero = zero;
  c.parallel.chunk_mib = 0.0003;  // one or two layers per chunk
  c.precision.mode = mode;
  c.optimizer.learning_rate = 1e-2;
  c.optimizer.epsilon = 1e-3;  // otherwise rounding decides the direction of small gradients
  c.training.steps = 2 * kSteps;
  c.training.batch_size = kRows;
  c.training.accumulate = accumulate;
  c.training.clip = 0;
  return c;
}

using Values = std::map<std::string, at::Tensor>;

Values values_of(Foreign& module) {
  const at::NoGradGuard no_grad;
  Values values;
  for (const auto& p : module.named_parameters()) values[p.key()] = p.value().clone();
  for (const auto& b : module.named_buffers()) values[b.key()] = b.value().clone();
  return values;
}

/// The training loop of torch. Parameters that no loss uses have a gradient of zeros, as in this library's reduction,
/// where ranks cannot detect them.
Values reference(int64_t steps) {
  Foreign module;
  module.to(at::kDouble);
  const run::Config config = config_of(1, 0);
  std::vector<at::Tensor> matrices, vectors;
  for (at::Tensor& p : module.parameters()) {
    if (p.requires_grad()) p.mutable_grad() = at::zeros_like(p);
    if (!p.requires_grad() || (p.is_same(module.tied) && !matrices.empty() && matrices[0].is_same(p))) continue;
    (p.dim() >= 2 ? matrices : vectors).push_back(p);
  }
  const auto options = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions().betas({0.9, 0.95}).eps(1e-3).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, options(config.optimizer.weight_decay));
  groups.emplace_back(vectors, options(0));
  torch::optim::AdamW optimizer(groups);
  for (int64_t step = 0; step < steps; ++step) {
    for (at::Tensor& p : module.parameters())
      if (p.grad().defined()) p.mutable_grad().zero_();
    loss_of(module, step, 0, 1, at::kDouble).backward();
    for (auto& group : optimizer.param_groups())
      group.options().set_lr(optim::learning_rate(config.optimizer, step + 1, config.training.steps, kRows));
    optimizer.step();
  }
  return values_of(module);
}

void train(ModuleTraining& training, Foreign& module, const run::Config& config, int rank, int64_t steps) {
  const int64_t accumulate = config.training.accumulate, parts = config.parallel.data * accumulate;
  for (int64_t i = 0; i < steps; ++i) {
    training.zero_grad();
    for (int64_t part = 0; part < accumulate; ++part)
      training.backward(
          loss_of(module, training.steps_done(), part * config.parallel.data + rank, parts, training.dtype()));
    training.step();
  }
}

/// A step changes a weight by at most learning_rate / epsilon times the error of its gradient, which is a sum over rows
/// and widths.
void expect_trained_alike(const Values& got, const Values& want) {
  for (const auto& [name, value] : want)
    if (name != "calls")
      test::expect_within(got.at(name), value, 10 * kSteps * test::tolerance(value, kRows * kWidth), name);
}

std::string temporary(const std::string& name) {
  const std::string folder = testing::TempDir() + "/module-training-" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

struct Case {
  int ranks;
  int64_t zero, accumulate;
};

class Layouts : public testing::TestWithParam<Case> {};

TEST_P(Layouts, EqualTorch) {
  const auto [ranks, zero, accumulate] = GetParam();
  const Values want = reference(kSteps);
  comm::run_ranks(ranks, [&, zero = zero, accumulate = accumulate](comm::World& world) {
    Foreign module(world.rank());  // rank 0's values must win
    const run::Config config = config_of(world.size(), zero, "fp64", accumulate);
    const auto training = initialize(world, module, config);
    train(*training, module, config, world.rank(), kSteps);
    const Values got = values_of(module);
    training->end_pass();
    EXPECT_EQ(training->store().counts().gathered, 0);
    EXPECT_EQ(training->store().counts().gathers > 0, zero == 3 && world.size() > 0);
    expect_trained_alike(got, want);
    EXPECT_EQ(got.at("calls").item<int64_t>(), kSteps * accumulate);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int ranks : {1, 2, 3})
    for (const int64_t zero : {0, 1, 2, 3})
      for (const int64_t accumulate : {1, 2}) all.push_back({ranks, zero, accumulate});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(cases()), [](const auto& info) {
  return "ranks" + std::to_string(info.param.ranks) + "_zero" + std::to_string(info.param.zero) + "_accumulate" +
         std::to_string(info.param.accumulate);
});

TEST(ModuleTraining, NeedsItsCollectives) {
  const Values want = reference(kSteps);
  const auto run = [&](comm::World& world) {
    Foreign module;
    const run::Config config = config_of(2, 0);
    const auto training = initialize(world, module, config);
    train(*training, module, config, world.rank(), kSteps);
    expect_trained_alike(values_of(module), want);
  };
  EXPECT_THROW(comm::run_ranks(2, run, {.collectives_off = true}), test::ParityError);
}

TEST(ModuleTraining, ComputesInBf16UnderZero3AndLearns) {
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module;
    run::Config config = config_of(2, 3, "bf16");
    config.optimizer.learning_rate = 3e-2;
    config.training.steps = 30;
    const auto training = initialize(world, module, config);
    for (const auto& p : module.parameters()) EXPECT_EQ(p.scalar_type(), at::kBFloat16);
    EXPECT_EQ(module.scale.scalar_type(), at::kBFloat16);
    EXPECT_EQ(module.calls.scalar_type(), at::kLong);
    EXPECT_EQ(training->mean(1 + world.rank()), 1.5);
    EXPECT_EQ(training->input(points(0)).scalar_type(), at::kBFloat16);
    EXPECT_EQ(training->input(module.calls).scalar_type(), at::kLong);
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      const double loss = training->mean(loss_of(module, 0, world.rank(), 2, at::kBFloat16).item<double>());
      training->end_pass();
      return loss;
    };
    const double before = evaluate();
    EXPECT_EQ(training->store().counts().gathered, 0);
    for (int64_t i = 0; i < config.training.steps; ++i) {
      training->zero_grad();
      training->backward(loss_of(module, 0, world.rank(), 2, at::kBFloat16));
      training->step();
    }
    EXPECT_LT(evaluate(), 0.8 * before);
  });
}

TEST(ModuleTraining, ResumesUnderAnotherLayout) {
  const std::string folder = temporary("layout");
  const Values want = reference(kSteps);
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module;
    const run::Config config = config_of(2, 3);
    const auto training = initialize(world, module, config);
    EXPECT_FALSE(training->resume(folder));
    train(*training, module, config, world.rank(), 3);
    training->save(folder);
  });
  comm::run_ranks(1, [&](comm::World& world) {
    Foreign module(7);
    const run::Config config = config_of(1, 0);
    const auto training = initialize(world, module, config);
    EXPECT_TRUE(training->resume(folder));
    EXPECT_EQ(training->steps_done(), 3);
    EXPECT_EQ(module.calls.item<int64_t>(), 3);
    train(*training, module, config, 0, kSteps - 3);
    expect_trained_alike(values_of(module), want);
  });
}

TEST(ModuleTraining, RefusesAnIncompleteNewestStep) {
  const std::string folder = temporary("incomplete");
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module;
    const run::Config config = config_of(2, 1, "fp32");
    const auto training = initialize(world, module, config);
    for (int64_t steps = 0; steps < 2; ++steps) {
      train(*training, module, config, world.rank(), 1);
      training->save(folder);
    }
  });
  std::filesystem::remove(checkpoint::step_path(folder, 2) + "/manifest.json");
  const std::string message = test::thrown_message([&] {
    comm::run_ranks(2, [&](comm::World& world) {
      Foreign module;
      initialize(world, module, config_of(2, 1, "fp32"))->resume(folder);
    });
  });
  EXPECT_NE(message.find("the newest step folder must be complete: " + checkpoint::step_path(folder, 2) +
                         ": it has no manifest.json; restore it, or move it away to continue from step 1"),
            std::string::npos)
      << message;
}

TEST(ModuleTraining, ResumesInFp32FromABf16Checkpoint) {
  const std::string folder = temporary("precision");
  Values low;
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module;
    module.layers[2]->weight.requires_grad_(true);  // a frozen parameter has no master weight
    const run::Config config = config_of(2, 3, "bf16");
    const auto training = initialize(world, module, config);
    train(*training, module, config, world.rank(), 3);
    const Values mine = values_of(module);
    if (world.rank() == 0) low = mine;
    training->save(folder);
  });
  comm::run_ranks(1, [&](comm::World& world) {
    Foreign module(7);
    module.layers[2]->weight.requires_grad_(true);
    const auto training = initialize(world, module, config_of(1, 0, "fp32"));
    training->load(folder);
    bool is_finer = false;
    for (const auto& [name, value] : values_of(module)) {
      test::expect_equal(value.to(low.at(name).scalar_type()), low.at(name), name);
      is_finer = is_finer || (value.is_floating_point() && !at::equal(value, low.at(name).to(value.scalar_type())));
    }
    EXPECT_TRUE(is_finer) << "masters were not saved";
  });
}

struct Refusal {
  const char* name;
  std::function<void(run::Config&)> change;
  const char* message;
};

class Refusals : public testing::TestWithParam<Refusal> {};

TEST_P(Refusals, NameTheRuleAndTheWayOut) {
  const std::string message = test::thrown_message([] {
    comm::run_ranks(2, [](comm::World& world) {
      Foreign module;
      run::Config config = config_of(2, 0, "fp32");
      GetParam().change(config);
      initialize(world, module, config);
    });
  });
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
}
INSTANTIATE_TEST_SUITE_P(
    All, Refusals,
    testing::Values(Refusal{"tensor", [](run::Config& c) { c.parallel.tensor.size = 2; },
                            "got tensor 2, pipeline 1, sequence 1, expert 1; set all to 1 and use parallel.data with "
                            "parallel.zero, or train with auto_parallel::initialize()"},
                    Refusal{"pipeline", [](run::Config& c) { c.parallel.pipeline.size = 2; },
                            "got tensor 1, pipeline 2, sequence 1, expert 1; set all to 1 and use parallel.data"},
                    Refusal{"sequence", [](run::Config& c) { c.parallel.sequence.size = 2; },
                            "got tensor 1, pipeline 1, sequence 2, expert 1; set all to 1 and use parallel.data"},
                    Refusal{"fp8", [](run::Config& c) { c.precision.mode = "fp8"; },
                            "a user-defined module does not have; set precision.mode = \"bf16\""},
                    Refusal{"recompute", [](run::Config& c) { c.memory.recompute = "block"; },
                            "got block for a user-defined module; set it to none"},
                    Refusal{"ranks", [](run::Config& c) { c.parallel.data = 3; },
                            "got 2 ranks, data 3; start that many or change parallel.data"},
                    Refusal{"batch", [](run::Config& c) { c.training.batch_size = 5; }, "the nearest are 4 and 6"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ModuleTraining, AppliesRatesOfGroups) {
  const std::string file = temporary("groups") + ".toml";
  std::ofstream(file) << R"([optimizer]
weight_decay = 0.1
[optimizer.groups]
parameters    = ["layer1.*", "layer?.bias"]
learning_rate = [0, 2]
weight_decay  = [1, 0.5]
)";
  comm::run_ranks(2, [&](comm::World& world) {
    run::Config config = config_of(2, 3);
    config.optimizer.groups = read_config<run::Config>(file, {}).optimizer.groups;
    Foreign grouped, plain;
    for (Foreign* module : {&grouped, &plain}) {
      const auto training = initialize(world, *module, config);
      train(*training, *module, config, world.rank(), 1);
      config.optimizer.groups = {};
      // Weights are read during the training's lifetime, because under ZeRO 3 they are not stored elsewhere.
      const Values before = values_of(*std::make_unique<Foreign>()), after = values_of(*module);
      const auto moved = [&](const char* name) {
        return (after.at(name) - before.at(name)).abs().max().item<double>();
      };
      EXPECT_EQ(moved("layer1.weight") == 0, module == &grouped);
      EXPECT_GT(moved("layer0.bias"), 0);
      training->end_pass();
    }
  });
}

TEST(ModuleTraining, RefusesUnmatchedGroupsBeforeMessages) {
  comm::run_ranks(2, [&](comm::World& world) {
    Foreign module;
    run::Config config = config_of(2, 0);
    config.optimizer.groups = {{"layers.*"}, {1}, {}};
    EXPECT_THAT(test::thrown_message([&] { initialize(world, module, config); }),
                testing::HasSubstr("no parameter belongs to group layers.* of groups.parameters"));
    EXPECT_EQ(world.traffic().total().calls, world.traffic().total("start").calls);  // compares the inputs
    config.optimizer.groups = {{"layer0.*"}, {1, 2}, {}};
    EXPECT_THAT(test::thrown_message([&] { config.validate(); }), testing::HasSubstr("got 2 for 1 patterns"));
  });
}

TEST(ModuleTraining, RefusesAModuleWithoutTrainedParameters) {
  const std::string message = test::thrown_message([] {
    comm::run_ranks(1, [](comm::World& world) {
      Foreign module;
      for (at::Tensor& p : module.parameters()) p.requires_grad_(false);
      initialize(world, module, config_of(1, 0, "fp32"));
    });
  });
  EXPECT_NE(message.find("no parameter that requires a gradient"), std::string::npos) << message;
}

TEST(ModuleTraining, RefusesExpertParallelism) {
  comm::run_ranks(2, [](comm::World& world) {
    Foreign module;
    run::Config config = config_of(1, 0, "fp32");
    config.parallel.expert.size = 2;
    EXPECT_EQ(test::thrown_message([&] { initialize(world, module, config); }),
              "[parallel] a user-defined module supports data parallelism and ZeRO only: got tensor 1, pipeline 1, "
              "sequence 1, expert 2; set all to 1 and use parallel.data with parallel.zero");
  });
}

TEST(ModuleTraining, RefusesWrongNumbersOfMicroBatches) {
  comm::run_ranks(1, [](comm::World& world) {
    Foreign module;
    const auto training = initialize(world, module, config_of(1, 0, "fp32", 2));
    const auto loss = [&] { return loss_of(module, 0, 0, 1, at::kFloat); };
    const auto expect = [](const std::function<void()>& act, const char* part) {
      const std::string message = test::thrown_message(act);
      EXPECT_NE(message.find(part), std::string::npos) << message;
    };
    expect([&] { training->backward(module.forward(points(0).to(at::kFloat))); }, "got 72 elements");
    expect([&] { training->backward(loss().detach()); }, "got 1 elements without a gradient");
    training->backward(loss());
    expect([&] { training->step(); }, "got 1 calls of backward() since zero_grad()");
    training->backward(loss());
    expect([&] { training->backward(loss()); }, "got more than 2");
    training->step();
    EXPECT_EQ(training->steps_done(), 1);
  });
}

TEST(ModuleTraining, RefusesToLoadAMissingCheckpoint) {
  const std::string folder = temporary("absent");
  const std::string message = test::thrown_message([&] {
    comm::run_ranks(2, [&](comm::World& world) {
      Foreign module;
      initialize(world, module, config_of(2, 1, "fp32"))->load(folder);
    });
  });
  EXPECT_NE(message.find("no complete checkpoint in " + folder), std::string::npos) << message;
}

}  // namespace
}  // namespace colossal::train::module_training_test
