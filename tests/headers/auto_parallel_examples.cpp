// The examples at the beginning of headers of auto_parallel, compiled and run. tests/base/examples_test.cpp compares
// them with the headers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <memory>
#include <string>
#include <vector>

#include "colossal/auto_parallel/apply.h"
#include "colossal/auto_parallel/blocks.h"
#include "colossal/auto_parallel/module_plan.h"
#include "colossal/auto_parallel/training.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/plan/plan_file.h"
#include "colossal/tensor/replica_rows.h"
#include "colossal/train/rank_inputs.h"
#include "trace/modules.h"

namespace colossal::header_examples {
namespace {

std::shared_ptr<trace::test::Mlp> make_net() {
  auto net = std::make_shared<trace::test::Mlp>();
  trace::test::fill(*net);
  net->to(at::kDouble);
  return net;
}

run::Config module_config(int64_t data, const std::string& folder) {
  run::Config config;
  config.run.device = "cpu";
  config.run.folder = testing::TempDir() + "/" + folder;
  config.parallel.data = data;
  config.precision.mode = "fp64";
  config.optimizer.warmup_steps = 0;
  config.training.steps = 2;
  config.training.batch_size = 8;
  return config;
}

TEST(HeaderExamples, AutoTraining) {
  comm::run_ranks(2, [](comm::World& world) {
    const run::Config config = module_config(2, "auto-training-example");
    const auto net = make_net();
    const at::Tensor points = net->inputs(8)[0], targets = net->inputs(8)[1];
    const at::Tensor before = net->fc1->weight.detach().clone();
    const auto batch_of = [&](int64_t replica, int64_t replicas) -> std::vector<at::Tensor> {
      const int64_t rows = 8 / replicas;
      return {points.narrow(0, replica * rows, rows), targets.narrow(0, replica * rows, rows)};
    };
    const auto loss = [&](const std::vector<at::Tensor>& in) { return torch::mse_loss(net->forward(in[0]), in[1]); };
    const auto training = colossal::auto_parallel::initialize(world, *net, loss, {points, targets}, config);
    while (training->steps_done() < config.training.steps) {
      training->zero_grad();
      training->backward(batch_of(training->replica(), training->replicas()));
      training->step();
    }
    training->gather();
    EXPECT_FALSE(at::equal(net->fc1->weight, before));
  });
}

}  // namespace
}  // namespace colossal::header_examples

namespace colossal::auto_parallel {
namespace {

using header_examples::make_net;
using header_examples::module_config;

at::Tensor sharded_loss(const trace::TracedModule& traced, const plan::Plan& plan, comm::Mesh& mesh,
                        const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& blocks_of_parameters) {
  const at::Tensor &rows_of_points = inputs[0], &rows_of_labels = inputs[1];
  const uint64_t seed = 0;
  ShardedGraph sharded(traced, plan, mesh, parameter_shares(traced.graph, plan));
  const at::Tensor loss = sharded.run({rows_of_points, rows_of_labels}, blocks_of_parameters, seed);
  loss.backward();
  return loss;
}

TEST(HeaderExamples, ModulePlanAndShardedGraph) {
  comm::run_ranks(1, [](comm::World& world) {
    const run::Config config = module_config(1, "module-plan-example");
    const auto everyone = train::group_of_all(world);
    const auto net = make_net();
    const trace::Loss loss = trace::test::loss_of(*net);
    const std::vector<at::Tensor> inputs = net->inputs(8);
    const ModulePlan planned = plan_module(*everyone, *net, loss, inputs, config, {});
    plan::write_plan(planned.plan, planned.traced.graph, config.run.folder + "/again.json");
    comm::Mesh mesh(world, {{"data", 1}, {"tensor", 1}});
    const at::Tensor want = net->loss(inputs);
    EXPECT_TRUE(at::equal(sharded_loss(planned.traced, planned.plan, mesh, inputs, planned.traced.parameters), want));
  });
}

TEST(HeaderExamples, Blocks) {
  comm::run_ranks(2, [](comm::World& world) {
    const plan::Plan plan{.mesh = plan::parse_mesh("data=2")};
    comm::Mesh mesh(world, {{"data", 2}});
    const at::Tensor whole = at::arange(8).view({4, 2});
    const plan::TensorType type{{4, 2}, "int64"};
    const plan::Links links;
    const plan::Spec from = plan::parse_spec("[data, R]", plan.mesh), to = plan::parse_spec("[R, R]", plan.mesh);
    const MeshGroups groups = groups_of(plan.mesh, mesh);
    const at::Tensor own = block_of(whole, plan::parse_spec("[data, R]", plan.mesh), groups);
    const at::Tensor gathered = run_calls(own, from, plan::convert(type, from, to, plan.mesh, links).calls, groups);
    EXPECT_TRUE(at::equal(gathered, whole));
  });
}

}  // namespace
}  // namespace colossal::auto_parallel
