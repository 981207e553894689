// Modules that train under a solved, an annotated and a loaded plan, compared with one process.
#include "colossal/auto_parallel/training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "auto_parallel/plan_courses.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/plan/graph.h"
#include "colossal/plan/plan_file.h"
#include "colossal/plan/solver.h"
#include "colossal/tensor/replica_rows.h"
#include "colossal/train/module_training.h"
#include "support/called_operators.h"
#include "support/thrown_message.h"

namespace colossal::auto_parallel::training_test {
namespace {

using ::testing::HasSubstr;

std::string temporary_folder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/auto-training-" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

using Count = comm::Traffic::Count;

/// Compares the traffic of the micro-batches of `steps` steps with the prediction.
void expect_traffic(AutoTraining& training, comm::World& world, int64_t steps) {
  std::map<comm::Traffic::Key, Count> want;
  const auto add = [&](const comm::Traffic::Key& key, const Count& count) {
    want[key].calls += count.calls * steps;
    want[key].bytes += count.bytes * static_cast<double>(steps);
  };
  for (const auto& [key, count] : training.predicted_traffic()) add(key, count);
  for (const auto& [group, count] : training.predicted_gradient_traffic())
    add({group, "all_reduce", comm::Phase::Backward}, count);
  std::map<comm::Traffic::Key, Count> got;
  for (const auto& [key, count] : world.traffic().entries()) {
    const comm::Phase phase = std::get<2>(key);
    if ((phase == comm::Phase::Forward || phase == comm::Phase::Backward) && count.calls > 0) got[key] = count;
  }
  const auto name = [](const comm::Traffic::Key& key) {
    return std::get<0>(key) + " " + std::get<1>(key) + " " + comm::to_string(std::get<2>(key));
  };
  for (const auto& [key, count] : want) {
    EXPECT_EQ(got[key].calls, count.calls) << name(key);
    EXPECT_EQ(got[key].bytes, count.bytes) << name(key);
  }
  for (const auto& [key, count] : got) EXPECT_TRUE(want.contains(key)) << name(key) << " was not predicted";
}

struct Layout {
  std::string subject;
  int64_t data, tensor;
  std::map<std::string, std::string> annotate{};
};

/// Trains a subject on ranks and checks its course and its traffic.
void expect_trains(const Layout& layout, const std::string& plan = "", int64_t zero = 0) {
  const Course want = alone(layout.subject);
  comm::run_ranks(static_cast<int>(layout.data * layout.tensor), [&](comm::World& world) {
    const Subject subject = subjects().at(layout.subject)(world.rank());  // rank 0's values must win
    run::Config config = config_of(layout.data, layout.tensor, layout.subject);
    config.parallel.plan = plan;
    config.parallel.zero = zero;
    const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config,
                                                    {.annotate = layout.annotate});
    world.traffic().reset();
    Course got{losses_of(*training, subject, kSteps), {}};
    if (zero == 0) expect_traffic(*training, world, kSteps);
    training->gather();
    got.values = values_of(*subject.module);
    expect_course(got, want);
  });
}

class Solved : public testing::TestWithParam<Layout> {};

TEST_P(Solved, TrainsAsOneProcessWithThePredictedTraffic) { expect_trains(GetParam()); }

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const auto& [name, make] : subjects())
    for (const auto& [data, tensor] : std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {1, 2}, {2, 2}, {1, 4}})
      all.push_back({name, data, tensor});
  return all;
}

std::string name_of(const testing::TestParamInfo<Layout>& info) {
  return info.param.subject + "_data" + std::to_string(info.param.data) + "_tensor" +
         std::to_string(info.param.tensor) + (info.param.annotate.empty() ? "" : "_" + std::to_string(info.index));
}

INSTANTIATE_TEST_SUITE_P(All, Solved, testing::ValuesIn(layouts()), name_of);

class Annotated : public testing::TestWithParam<Layout> {};

TEST_P(Annotated, TrainsAsOneProcessWithThePredictedTraffic) { expect_trains(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    All, Annotated,
    testing::Values(
        Layout{"mlp", 2, 2, {{"fc1.weight", "[tensor, R]"}, {"fc2.weight", "[R, tensor]"}}},  // Megatron
        Layout{"mlp", 1, 4, {{"fc1.weight", "[R, tensor]"}, {"fc2.weight", "[R, tensor]"}}},  // sums twice
        Layout{"mlp", 2, 2, {{"fc1.weight", "[data, tensor]"}}},                              // axis data on a weight
        Layout{"convolutions", 2, 2, {{"conv1.weight", "[tensor, R, R, R]"}, {"conv2.weight", "[tensor, R, R, R]"}}},
        Layout{"convolutions", 1, 2, {{"conv1.weight", "[R, tensor, R, R]"}, {"head.weight", "[R, tensor]"}}},
        Layout{"transformer", 2, 2, {{"layers.0.fc1.weight", "[tensor, R]"}, {"layers.0.fc2.weight", "[R, tensor]"}}},
        Layout{"transformer", 1, 4, {{"tokens.weight", "[tensor, R]"}, {"head", "[tensor, R]"}}},
        Layout{"shared", 2, 2, {{"head", "[tensor, R]"}}},  // looked up by rows, head by classes
        Layout{"shared", 2, 2, {{"head", "[R, tensor]"}}}),
    name_of);

/// Writes a plan file whose nodes have the strategies that `choose` returns, "" = that of the solved plan.
std::string edited_plan(const std::string& name, const std::function<std::string(const plan::Node&)>& choose,
                        int64_t data = 2, int64_t tensor = 2) {
  const std::string path = testing::TempDir() + "/edited-" + name + ".json";
  comm::run_ranks(static_cast<int>(data * tensor), [&](comm::World& world) {
    const Subject subject = subjects().at(name)(0);
    const run::Config config = config_of(data, tensor, name + "-edited");
    const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config);
    if (world.rank() != 0) return;
    const plan::Graph graph = plan::read_graph(config.run.folder + "/graph.json");
    std::vector<std::string> strategies;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const std::string chosen = choose(graph.nodes[i]);
      strategies.push_back(chosen.empty() ? training->plan().strategies[i].name : chosen);
    }
    plan::write_plan(plan::price_plan(graph, training->plan().mesh, {}, strategies), graph, path);
  });
  return path;
}

TEST(LoadedPlan, TrainsAsOneProcessWithThePredictedTraffic) {
  const auto choose = [](const plan::Node& node) -> std::string {
    return node.op == "linear" ? "data=dim0,tensor=in" : node.op == "relu" ? "whole" : "";
  };
  expect_trains({"mlp", 2, 2}, edited_plan("mlp", choose));
}

/// Megatron's sequence parallelism with a divided vocabulary: gathers before the first linear layers of a block,
/// scatters after the last ones.
std::string sequence_parallel(const plan::Node& node, bool has_data) {
  const std::string rows = has_data ? "data=dim0," : "";
  const auto has_weight = [&](const char* name) { return node.inputs.size() > 1 && node.inputs[1].ends_with(name); };
  if (has_weight("qkv.weight") || has_weight("fc1.weight")) return rows + "tensor=out<dim1";
  if (has_weight("proj.weight") || has_weight("fc2.weight")) return rows + "tensor=in>dim1";
  if (node.op == "embedding") return rows + "tensor=in>dim1";
  if (node.op == "linear") return rows + "tensor=out";
  return node.op == "cross_entropy" ? rows + "tensor=classes" : "";
}

TEST(LoadedPlan, ScattersGathersAndDividesTheVocabulary) {
  for (const auto& [data, tensor] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {1, 4}, {2, 2}}) {
    const bool has_data = data > 1;
    const auto choose = [has_data](const plan::Node& node) { return sequence_parallel(node, has_data); };
    expect_trains({"transformer", data, tensor}, edited_plan("transformer", choose, data, tensor));
  }
}

TEST(LoadedPlan, RunsAnOperatorOfSeveralResultsOnce) {
  const auto choose = [](const plan::Node& node) -> std::string { return node.op == "linear" ? "data=dim0" : ""; };
  const std::string path = edited_plan("largest", choose, 2, 1);  // both results of topk read a converted operand
  expect_trains({"largest", 2, 1}, path);
  const auto calls_in = [&](int64_t steps) {
    const colossal::test::CalledOperators called;
    comm::run_ranks(2, [&](comm::World& world) {
      const Subject subject = subjects().at("largest")(0);
      run::Config config = config_of(2, 1, "largest");
      config.parallel.plan = path;
      const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config);
      losses_of(*training, subject, steps);
    });
    return called("topk");
  };
  EXPECT_EQ(calls_in(kSteps) - calls_in(0), 2 * kSteps);
}

TEST(LoadedPlan, RefusesAnotherMeshWithTheAxis) {
  const std::string path = edited_plan("mlp", [](const plan::Node&) { return std::string(); });
  comm::run_ranks(2, [&](comm::World& world) {
    const Subject subject = subjects().at("mlp")(0);
    run::Config config = config_of(2, 1, "other-mesh");
    config.parallel.plan = path;
    EXPECT_THAT(colossal::test::thrown_message([&] {
                  auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config);
                }),
                HasSubstr("axis tensor is 2 there and 1 in the run"));
  });
}

class Stages : public testing::TestWithParam<int> {};

TEST_P(Stages, ShardWhatTheReplicasShare) {
  for (const char* name : {"mlp", "shared", "convolutions"}) expect_trains({name, 2, 2}, "", GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Stages, testing::Values(1, 2, 3));

/// Returns the losses and values of ModuleTraining in one process, which calls the module itself.
Course torch_course(const std::string& name, const std::string& resumed_from = "", int64_t steps = kSteps) {
  Course course;
  comm::run_ranks(1, [&](comm::World& world) {
    const Subject subject = subjects().at(name)(resumed_from.empty() ? 0 : 7);
    const auto training = train::initialize(world, *subject.module, config_of(1, 1, name + "-torch"));
    if (!resumed_from.empty()) training->load(resumed_from);
    for (int64_t i = 0; i < steps; ++i) {
      training->zero_grad();
      training->backward(subject.loss(subject.inputs(training->steps_done())));
      training->step();
      course.losses.push_back(training->loss());
    }
    course.values = values_of(*subject.module);
  });
  return course;
}

TEST(AutoTraining, FollowsTorch) {
  for (const char* name : {"mlp", "frozen", "largest", "convolutions", "evaluated", "shared"}) {
    SCOPED_TRACE(name);
    expect_course(alone(name), torch_course(name));
  }
}

/// Trains half of the steps on a mesh, and saves.
void save_half(const std::string& name, int64_t data, int64_t tensor, const std::string& folder) {
  comm::run_ranks(static_cast<int>(data * tensor), [&](comm::World& world) {
    const Subject subject = subjects().at(name)(0);
    const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0),
                                                    config_of(data, tensor, name + "-half"));
    EXPECT_FALSE(training->resume(folder));
    losses_of(*training, subject, kSteps / 2);
    training->save(folder);
  });
}

Course second_half(const Course& whole) {
  return {{whole.losses.begin() + kSteps / 2, whole.losses.end()}, whole.values};
}

TEST(AutoTraining, ResumesOnAnotherMesh) {
  for (const char* name : {"convolutions", "transformer", "shared"}) {
    SCOPED_TRACE(name);
    const std::string folder = temporary_folder(std::string(name) + "-checkpoint");
    save_half(name, 2, 2, folder);
    const Course want = second_half(alone(name));
    comm::run_ranks(2, [&](comm::World& world) {
      const Subject subject = subjects().at(name)(7);
      const auto training =
          auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config_of(1, 2, "other"));
      EXPECT_TRUE(training->resume(folder));
      EXPECT_EQ(training->steps_done(), kSteps / 2);
      Course got{losses_of(*training, subject, kSteps / 2), {}};
      training->gather();
      got.values = values_of(*subject.module);
      expect_course(got, want);
    });
  }
}

TEST(AutoTraining, ResumesInModuleTraining) {
  for (const char* name : {"mlp", "convolutions", "shared"}) {
    SCOPED_TRACE(name);
    const std::string folder = temporary_folder(std::string(name) + "-to-module");
    save_half(name, 2, 2, folder);
    expect_course(torch_course(name, folder, kSteps / 2), second_half(torch_course(name)));
  }
}

TEST(AutoTraining, AccumulatesMicroBatches) {
  const Course want = alone("mlp");
  comm::run_ranks(2, [&](comm::World& world) {
    const Subject subject = subjects().at("mlp")(0);
    run::Config config = config_of(2, 1, "accumulate");
    config.training.accumulate = 2;
    std::vector<at::Tensor> example;
    for (const at::Tensor& input : subject.inputs(0)) example.push_back(input.narrow(0, 0, kRows / 2));
    const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, example, config);
    Course got;
    for (int64_t step = 0; step < kSteps; ++step) {
      training->zero_grad();
      for (int64_t part = 0; part < 2; ++part) {
        const tensor::ReplicaRows rows{kRows, 2, training->replica(), training->replicas()};
        std::vector<at::Tensor> own;
        for (const at::Tensor& input : subject.inputs(step))
          own.push_back(input.narrow(0, rows.global(part * rows.of_micro_batch()), rows.of_micro_batch()));
        training->backward(own);
      }
      training->step();
      got.losses.push_back(training->loss());
    }
    expect_course(got, {want.losses, {}});
  });
}

TEST(AutoTraining, LeavesGraphAndPlanInTheRunFolder) {
  const run::Config config = config_of(2, 1, "files");
  std::filesystem::remove_all(config.run.folder);
  comm::run_ranks(2, [&](comm::World& world) {
    const Subject subject = subjects().at("mlp")(0);
    const auto training = auto_parallel::initialize(world, *subject.module, subject.loss, subject.inputs(0), config);
    const plan::Graph graph = plan::read_graph(config.run.folder + "/graph.json");
    const plan::PlanFile file = plan::read_plan(config.run.folder + "/plan.json", graph);
    ASSERT_EQ(file.strategies.size(), training->plan().strategies.size());
    for (size_t i = 0; i < file.strategies.size(); ++i)
      EXPECT_EQ(file.strategies[i], training->plan().strategies[i].name);
  });
}

}  // namespace
}  // namespace colossal::auto_parallel::training_test
