// Several models over one mesh. In one engine each trains as in an engine of its own, bitwise, under every sharding and
// with budgets that hold only one of them. A pass communicates only the gradients of its model. The model that trains
// also generates.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "colossal/base/error.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/engine.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/train/memory_needs.h"
#include "support/reporter.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::several_models_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kSteps = 3;

models::ModelShape policy() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4;
  return shape;
}

/// A model of another family and depth: in a pipeline it has cuts of its own.
models::ModelShape critic() {
  models::ModelShape shape = test::tiny_llama();
  shape.layers = 5;
  return shape;
}

std::vector<NamedModel> both() { return {{.shape = policy()}, {.name = "critic", .shape = critic()}}; }

run::Config config_for(const Layout& layout) {
  run::Config config = config_of(layout);
  config.training.clip = 0;  // the norm covers all models together
  config.optimizer.learning_rate = 0.01;
  return config;
}

at::Tensor lost(const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
  return model.head->loss_sum(end.at(0), step.batch->at("labels"), step);
}

tensor::Batch batch_of(Engine& engine, int64_t step) { return test::own_batch(engine, step, kText); }

double pass(Engine& engine, int64_t step, const std::string& model = "", const Engine::Loss& loss = lost) {
  const tensor::Batch batch = batch_of(engine, step);
  return engine.train_step(batch, static_cast<double>(batch.at("labels").numel()), loss, model);
}

/// One step of a single model.
double step_of(Engine& engine, int64_t step, const std::string& model = "") {
  engine.zero_grad();
  const double loss = pass(engine, step, model);
  engine.step();
  return loss;
}

struct Case {
  Layout layout;
  std::string schedule = "1f1b", recompute = "none";
  bool has_tiers = false;
};

class SeveralModels : public testing::TestWithParam<Case> {};

// The compared engines also share one mesh; each has its own optimizer and budgets.
TEST_P(SeveralModels, EqualSeparateEngines) {
  const Case& c = GetParam();
  run::Config config = config_for(c.layout);
  config.parallel.pipeline.schedule = c.schedule;
  config.memory.recompute = c.recompute;
  const test::TemporaryFolder folder;
  if (c.has_tiers) config.memory.disk = folder.path(), config.memory.host = int64_t{1} << 30;
  comm::run_ranks(c.layout.ranks(), [&](comm::World& world) {
    comm::Mesh mesh(world, config.parallel.axes());
    const auto together = initialize(mesh, config, both());
    const auto first = initialize(mesh, config, {{.shape = policy()}});
    const auto second = initialize(mesh, config, {{.shape = critic()}});
    std::set<double> seen;
    for (int64_t step = 0; step < kSteps; ++step) {
      together->zero_grad();
      const double of_policy = pass(*together, step), of_critic = pass(*together, step, "critic");
      together->step();
      EXPECT_EQ(of_policy, step_of(*first, step)) << "step " << step;
      EXPECT_EQ(of_critic, step_of(*second, step)) << "step " << step;
      seen.insert({of_policy, of_critic});
    }
    EXPECT_EQ(seen.size(), 2 * kSteps) << "both train";
    for (const auto& chunk : together->store().chunks())
      for (const memory::Slot& slot : chunk->slots())
        EXPECT_EQ(slot.parameter->model, chunk->slots().front().parameter->model);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, SeveralModels,
                         testing::Values(Case{{.name = "One"}}, Case{{.name = "Data", .data = 2}},
                                         Case{{.name = "Zero1Bf16", .zero = 1, .data = 2, .precision = "bf16"}},
                                         Case{{.name = "Zero2", .zero = 2, .data = 2}},
                                         Case{{.name = "Zero3", .zero = 3, .data = 2}, "1f1b", "block"},
                                         Case{{.name = "Tensor", .tensor = 2}},
                                         Case{{.name = "Pipeline", .pipeline = 2}},
                                         Case{{.name = "ZeroBubbleV", .pipeline = 2}, "zero-bubble-v"},
                                         Case{{.name = "Chimera", .pipeline = 2}, "chimera"},
                                         Case{{.name = "PipelineZero3", .zero = 3, .data = 2, .pipeline = 2}},
                                         Case{{.name = "Tiers"}, "1f1b", "block", true},
                                         Case{{.name = "TiersZero3", .zero = 3, .data = 2}, "1f1b", "block", true},
                                         Case{{.name = "TiersPipeline", .pipeline = 2}, "1f1b", "none", true}),
                         [](const auto& info) { return info.param.layout.name; });

/// The sum of the losses of a pass without gradients, on the ranks of the last stage.
double sum_without_gradients(Engine& engine, int64_t step, const std::string& model = "") {
  double sum = 0;
  for (const at::Tensor& result : engine.forward(batch_of(engine, step), lost, model)) sum += result.item<double>();
  return sum;
}

// The budget holds the policy's parameters, gradients and states, but not parameters and states of both models.
TEST(SeveralModels, EvictAnIdleModelToDisk) {
  models::ModelShape large = critic();
  large.layers = 24;
  const std::vector<NamedModel> models{{.shape = policy()},
                                       {.name = "reference", .shape = large, .adapter = nn::frozen()}};
  const test::TemporaryFolder folder;
  run::Config config = config_for({.name = "One"});
  config.memory.disk = folder.path(), config.memory.host = int64_t{1} << 30;
  run::Config small = config;
  int64_t kept = 0;
  for (const MemoryNeed& need : memory_needs({config, models}, 0)) {
    if (need.what == "without a disk" && need.model.empty()) small.memory.host = need.bytes;
    if (need.what == "parameters" || need.what == kFrozenParameters || need.what == "states") kept += need.bytes;
  }
  ASSERT_GT(kept, small.memory.host);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, config.parallel.axes());
    const auto together = initialize(mesh, small, models);
    const auto first = initialize(mesh, config, {{.shape = policy()}});
    const auto second = initialize(mesh, config, {{.shape = large}});
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(step_of(*together, step), step_of(*first, step)) << "step " << step;
      EXPECT_GT(together->tiers()->counts().disk_bytes, 0) << "step " << step;
      EXPECT_EQ(sum_without_gradients(*together, step, "reference"), sum_without_gradients(*second, step))
          << "step " << step;
      EXPECT_LE(together->tiers()->counts().peak_host_bytes, small.memory.host);
    }
    EXPECT_GT(together->tiers()->counts().bytes_read, 0);
    EXPECT_EQ(first->tiers()->counts().bytes_read, 0);
  });
}

// A frozen model runs between the passes of a pipeline, whose stages cut it differently.
TEST(SeveralModels, RunAFrozenModelInEveryLayout) {
  for (const Layout& layout : {Layout{.name = "Zero3", .zero = 3, .data = 2}, Layout{.name = "Pipeline", .pipeline = 2},
                               Layout{.name = "Tensor", .tensor = 2}}) {
    SCOPED_TRACE(layout.name);
    const run::Config config = config_for(layout);
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      const auto together = initialize(
          mesh, config, {{.shape = policy()}, {.name = "reference", .shape = critic(), .adapter = nn::frozen()}});
      const auto first = initialize(mesh, config, {{.shape = policy()}});
      const auto second = initialize(mesh, config, {{.shape = critic()}});
      for (int64_t step = 0; step < kSteps; ++step) {
        EXPECT_EQ(sum_without_gradients(*together, step, "reference"), sum_without_gradients(*second, step));
        EXPECT_EQ(step_of(*together, step), step_of(*first, step));
      }
    });
  }
}

TEST(SeveralModels, SendOnlyGradientsOfTheModelOfAPass) {
  for (const int64_t zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(concat("zero ", zero));
    const run::Config config = config_for({.zero = zero, .data = 2});
    comm::run_ranks(2, [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      const auto sent = [&](Engine& engine, const std::string& model) {
        engine.zero_grad();
        world.traffic().reset();
        pass(engine, 0, model);
        std::vector<double> sums;  // under ZeRO 3 parameters are gathered in addition
        for (const char* collective : {"all_reduce", "reduce_scatter"}) {
          const auto total = world.traffic().total("data", collective, comm::Phase::Backward);
          sums.insert(sums.end(), {static_cast<double>(total.calls), total.elements});
        }
        return sums;
      };
      const auto together = initialize(mesh, config, both());
      const auto first = initialize(mesh, config, {{.shape = policy()}});
      const auto second = initialize(mesh, config, {{.shape = critic()}});
      const auto of_policy = sent(*first, ""), of_critic = sent(*second, "");
      EXPECT_GT(of_policy[1] + of_policy[3], 0);
      EXPECT_NE(of_policy, of_critic);
      EXPECT_EQ(sent(*together, ""), of_policy);
      EXPECT_EQ(sent(*together, "critic"), of_critic);
    });
  }
}

/// Returns the elements that an engine updates of a model, concatenated.
at::Tensor weights_of(Engine& engine, const std::string& prefix) {
  std::map<std::string, std::vector<at::Tensor>> by_name;
  for (const checkpoint::NamedTensor& weight : engine.weights())
    if (weight.name.starts_with(prefix)) by_name[weight.name].push_back(weight.value.clone().flatten());
  std::vector<at::Tensor> all;
  for (const auto& [name, parts] : by_name) all.insert(all.end(), parts.begin(), parts.end());
  return at::cat(all);
}

// Only weight decay changes the model, for any storage of its gradients.
TEST(SeveralModels, GiveZeroGradientsWithoutAPass) {
  const test::TemporaryFolder folder;
  at::Tensor want;
  for (const int64_t zero : {0, 2, 3, -1}) {  // -1: tiers
    SCOPED_TRACE(concat("zero ", zero));
    run::Config config = config_for({.zero = std::max<int64_t>(zero, 0), .precision = "fp64"});
    if (zero < 0) config.memory.disk = folder.path(), config.memory.host = int64_t{1} << 30;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      const auto together = initialize(mesh, config, both());
      const auto first = initialize(mesh, config, {{.shape = policy()}});
      const at::Tensor before = weights_of(*together, "critic.");
      for (int64_t step = 0; step < kSteps; ++step) EXPECT_EQ(step_of(*together, step), step_of(*first, step));
      const at::Tensor after = weights_of(*together, "critic.");
      EXPECT_FALSE(at::equal(before, after));
      // A step of AdamW without moments scales a weight by a factor or leaves it unchanged.
      EXPECT_TRUE((after.abs() <= before.abs()).all().item<bool>());
      EXPECT_TRUE((after.sign() == before.sign()).all().item<bool>());
      if (!want.defined()) want = after;
      EXPECT_TRUE(at::equal(after, want));
    });
  }
}

struct Packed {
  nn::PackedWeights layers{nn::WeightPacking{.keeps_values = true}};
  nn::Adapter adapter(bool trains) {
    return {.treatment = [trains](const std::string&) { return nn::Treatment{.trains = trains}; },
            .product =
                [this](auto product, const nn::Parameter& weight, nn::Parameters&) {
                  return weight.hidden_matrix ? layers.wrap(std::move(product), weight) : product;
                }};
  }
  std::vector<NamedModel> models() {
    return {{.shape = policy(), .adapter = adapter(true)},
            {.name = "reference", .shape = critic(), .adapter = adapter(false)}};
  }
};

std::vector<int64_t> generated(Engine& engine, Packed& packed, const std::string& model) {
  packed.layers.repack();
  std::vector<int64_t> tokens;
  infer::Engine sampler(engine.model(model), {.cache_bytes = 1 << 20, .block_tokens = 16});
  sampler.add({.prompt = {1, 2, 3}, .options = {.max_tokens = 8, .sampling = {.temperature = 0}}},
              [&](const infer::Event& event) {
                if (event.is_answer()) tokens.push_back(event.token);
              });
  while (sampler.has_work()) sampler.step();
  packed.layers.release();
  EXPECT_EQ(tokens.size(), 8u);
  return tokens;
}

TEST(SeveralModels, GenerateAsAFreshlyLoadedModel) {
  for (const Layout& layout : {Layout{.name = "One"}, Layout{.name = "Zero3", .zero = 3, .data = 2},
                               Layout{.name = "Pipeline", .pipeline = 2}}) {
    SCOPED_TRACE(layout.name);
    const std::string folder = test::empty_folder(layout.name);
    run::Config config = config_for(layout);
    config.memory.recompute = "block";  // forward passes of recomputed layers have no gradients
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      Packed packed;
      const auto engine = initialize(mesh, config, packed.models());
      const auto plain = initialize(mesh, config, {{.shape = policy()}});
      std::set<std::vector<int64_t>> of_policy, of_reference;
      for (int64_t round = 0; round < 3; ++round) {
        const auto tokens = generated(*engine, packed, ""), others = generated(*engine, packed, "reference");
        test::save(*engine, folder);
        Packed fresh;
        const auto loaded = initialize(mesh, config, fresh.models());
        test::load(*loaded, folder);
        EXPECT_EQ(tokens, generated(*loaded, fresh, "")) << "round " << round;
        EXPECT_EQ(others, generated(*loaded, fresh, "reference")) << "round " << round;
        of_policy.insert(tokens);
        of_reference.insert(others);
        for (int64_t step = 4 * round; step < 4 * (round + 1); ++step)
          EXPECT_EQ(step_of(*engine, step), step_of(*plain, step)) << "step " << step;
      }
      EXPECT_GT(of_policy.size(), 1u) << "what is generated follows from what was learnt";
      EXPECT_EQ(of_reference.size(), 1u);
    });
  }
}

std::set<std::string> names_in(const checkpoint::TrainingState& state) {
  std::set<std::string> names;
  for (const checkpoint::NamedTensor& tensor : state.tensors) names.insert(tensor.name);
  return names;
}

// One checkpoint holds all models. The names of the main model do not change, so it can be loaded alone.
TEST(SeveralModels, ShareACheckpointThatLoadsUnderAnotherLayout) {
  const std::string folder = test::empty_folder("both");
  const auto steps_of_both = [](Engine& engine, int64_t first, int64_t last) {
    std::vector<double> losses;
    for (int64_t step = first; step < last; ++step) {
      engine.zero_grad();
      losses.push_back(pass(engine, step));
      losses.push_back(pass(engine, step, "critic"));
      engine.step();
    }
    return losses;
  };
  const auto in_fp64 = [](Layout layout) {
    layout.precision = "fp64";
    return config_for(layout);
  };
  std::vector<double> want;
  comm::run_ranks(1, [&](comm::World& world) {
    const run::Config config = in_fp64({});
    comm::Mesh mesh(world, config.parallel.axes());
    const auto engine = initialize(mesh, config, both());
    steps_of_both(*engine, 0, kSteps);
    test::save(*engine, folder);
    want = steps_of_both(*engine, kSteps, 2 * kSteps);
    const auto alone = initialize(mesh, config, {{.shape = policy()}});
    std::set<std::string> names = names_in(engine->state());
    for (const std::string& name : names_in(alone->state())) EXPECT_EQ(names.erase(name), 1u) << name;
    for (const std::string& name : names) {
      EXPECT_FALSE(name.starts_with("model.")) << name;
      EXPECT_THAT(name, HasSubstr("critic.")) << name;
    }
    EXPECT_EQ(names.count("critic.norm.weight"), 1u);
  });
  for (const Layout& layout : {Layout{.zero = 3, .data = 2}, Layout{.tensor = 2, .pipeline = 2}}) {
    const run::Config config = in_fp64(layout);
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      comm::Mesh mesh(world, config.parallel.axes());
      const auto engine = initialize(mesh, config, both());
      test::load(*engine, folder);
      const std::vector<double> got = steps_of_both(*engine, kSteps, 2 * kSteps);
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << i;
      const auto alone = initialize(mesh, config, {{.shape = policy()}});
      checkpoint::TrainingState weights = alone->state();
      std::erase_if(weights.tensors, [](const auto& tensor) { return !tensor.name.starts_with("model."); });
      checkpoint::load(*checkpoint::latest(folder), weights, mesh.all(), mesh.coordinates(), "model.");
      alone->weights_loaded();
      alone->zero_grad();
      EXPECT_NEAR(pass(*alone, kSteps), want.front(), 1e-10);
    });
  }
}

TEST(SeveralModels, ReportWithTheirNames) {
  comm::run_ranks(1, [](comm::World& world) {
    const run::Config config = config_for({});
    comm::Mesh mesh(world, config.parallel.axes());
    const auto engine =
        initialize(mesh, config, {{.shape = policy()}, {.name = "critic", .shape = test::tiny_reporter()}});
    EXPECT_EQ(engine->loss_rows().size(), 4u);
    EXPECT_EQ(engine->loss_rows().front().name, "critic.blocks.0.probe_loss");
    engine->zero_grad();
    pass(*engine, 0);
    EXPECT_TRUE(engine->step().rows.empty()) << "no pass went through it";
    engine->zero_grad();
    pass(*engine, 0, "critic");
    const std::vector<Metric> rows = engine->step().rows;
    EXPECT_GT(rows.size(), 4u);
    for (const Metric& row : rows) EXPECT_TRUE(row.name.starts_with("critic.")) << row.name;
  });
}

TEST(SeveralModels, RefuseInvalidNames) {
  comm::run_ranks(1, [](comm::World& world) {
    const run::Config config = config_for({});
    comm::Mesh mesh(world, config.parallel.axes());
    const auto refused = [&](const std::vector<NamedModel>& models) {
      return test::thrown_message([&] { initialize(mesh, config, models); });
    };
    EXPECT_THAT(refused({}), HasSubstr("got no model"));
    EXPECT_THAT(refused({{.name = "policy", .shape = policy()}}), HasSubstr("has no name: got policy"));
    EXPECT_THAT(refused({{.shape = policy()}, {.shape = critic()}}),
                HasSubstr("letters, digits and _ alone: got \"\""));
    EXPECT_THAT(refused({{.shape = policy()}, {.name = "a.b", .shape = critic()}}), HasSubstr("got \"a.b\""));
    EXPECT_THAT(refused({{.shape = policy()}, {.name = "model", .shape = critic()}}), HasSubstr("got model"));
    EXPECT_THAT(
        refused({{.shape = policy()}, {.name = "critic", .shape = critic()}, {.name = "critic", .shape = critic()}}),
        HasSubstr("got critic twice"));
    EXPECT_THAT(refused({{.shape = policy(), .adapter = nn::frozen()}}), HasSubstr("at least one parameter"));

    const auto engine = initialize(
        mesh, config, {{.shape = policy()}, {.name = "reference", .shape = critic(), .adapter = nn::frozen()}});
    const auto names = AllOf(HasSubstr("critic"), HasSubstr("the main model"), HasSubstr("reference"));
    EXPECT_THAT(test::thrown_message([&] { pass(*engine, 0, "critic"); }), names);
    EXPECT_THAT(test::thrown_message([&] { engine->forward(batch_of(*engine, 0), lost, "critic"); }), names);
    EXPECT_THAT(test::thrown_message([&] { engine->model("critic"); }), names);
    EXPECT_THAT(test::thrown_message([&] { pass(*engine, 0, "reference"); }),
                HasSubstr("got reference, which is frozen"));
  });
}

TEST(SeveralModels, RefuseAMeshOfAnotherLayout) {
  comm::run_ranks(2, [](comm::World& world) {
    const run::Config config = config_for({.tensor = 2});
    comm::Mesh mesh(world, config_for({.data = 2}).parallel.axes());
    EXPECT_THAT(test::thrown_message([&] { initialize(mesh, config, both()); }),
                AllOf(HasSubstr("the axes of [parallel]"), HasSubstr("data 2"), HasSubstr("tensor 2")));
  });
}

TEST(SeveralModels, RefuseGradientsOfAnotherModel) {
  comm::run_ranks(1, [](comm::World& world) {
    const run::Config config = config_for({.zero = 2});
    comm::Mesh mesh(world, config.parallel.axes());
    const auto engine = initialize(mesh, config, both());
    engine->zero_grad();
    const auto of_two = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return lost(model, end, step) + engine->parameters().at("critic.norm.weight").value.sum();
    };
    EXPECT_THAT(test::thrown_message([&] { pass(*engine, 0, "", of_two); }),
                AllOf(HasSubstr("critic.norm.weight"), HasSubstr("the main model"), HasSubstr("detach")));
  });
}

}  // namespace
}  // namespace colossal::train::several_models_test
