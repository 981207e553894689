// Blocks, conversions, dropout and batch norm on ranks, compared with whole tensors on one.
#include "colossal/auto_parallel/apply.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "colossal/auto_parallel/block_layers.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/traffic.h"
#include "colossal/ops/random.h"
#include "colossal/plan/strategies.h"
#include "support/tolerance.h"

namespace colossal::auto_parallel::apply_test {
namespace {

at::Tensor counted(const std::vector<int64_t>& shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).view(shape);
}

at::Tensor waves(const std::vector<int64_t>& shape, double phase) { return counted(shape).add(phase).mul(0.37).sin(); }

void on_mesh(int64_t data, int64_t tensor, const std::function<void(comm::Mesh&, const MeshGroups&)>& body,
             const comm::RankOptions& options = {}) {
  comm::run_ranks(
      static_cast<int>(data * tensor),
      [&](comm::World& world) {
        comm::Mesh mesh(world, {{"data", static_cast<int>(data)}, {"tensor", static_cast<int>(tensor)}});
        body(mesh, groups_of(plan::Mesh{{{"data", data}, {"tensor", tensor}}}, mesh));
      },
      options);
}

/// Converts a tensor between all pairs of specs and returns the number of pairs.
int64_t convert_all(const std::vector<int64_t>& shape, comm::Mesh& mesh, const MeshGroups& groups) {
  const plan::TensorType type{shape, "float64"};
  const at::Tensor whole = counted(shape);
  const std::vector<plan::Spec> specs = plan::legal_specs(shape, groups.mesh);
  comm::Traffic& traffic = mesh.world().traffic();
  int64_t pairs = 0;
  for (const plan::Spec& from : specs) {
    for (const plan::Spec& to : specs) {
      if (from == to) continue;
      const plan::Conversion path = plan::convert(type, from, to, groups.mesh, plan::Links{});
      const comm::Traffic::Count before = traffic.total();
      const at::Tensor got = run_calls(block_of(whole, from, groups), from, path.calls, groups);
      const comm::Traffic::Count after = traffic.total();
      test::expect_equal(got, block_of(whole, to, groups).contiguous(),
                         plan::print_spec(from, groups.mesh) + " to " + plan::print_spec(to, groups.mesh));
      EXPECT_EQ(after.bytes - before.bytes, static_cast<double>(path.bytes));
      ++pairs;
    }
  }
  return pairs;
}

TEST(RunCalls, GivesTheBlocksOfADirectReshardForAllConversions) {
  on_mesh(2, 4, [](comm::Mesh& mesh, const MeshGroups& groups) {
    EXPECT_EQ(convert_all({8, 8}, mesh, groups), 72);
    EXPECT_EQ(convert_all({8, 8, 8}, mesh, groups), 240);
    EXPECT_EQ(convert_all({8, 8, 8, 8}, mesh, groups), 600);
  });
}

TEST(RunCalls, NeedsItsCollectives) {
  const auto convert = [](comm::Mesh& mesh, const MeshGroups& groups) { convert_all({8, 8}, mesh, groups); };
  EXPECT_THROW(on_mesh(2, 4, convert, {.collectives_off = true}), test::ParityError);
}

TEST(Converted, ReturnsGradientsUnderTheFirstSpec) {
  on_mesh(2, 2, [](comm::Mesh&, const MeshGroups& groups) {
    const plan::TensorType type{{4, 4}, "float64"};
    const at::Tensor whole = counted({4, 4}), gradient = waves({4, 4}, 3);
    for (const plan::Spec& from : plan::legal_specs(type.shape, groups.mesh)) {
      for (const plan::Spec& to : plan::legal_specs(type.shape, groups.mesh)) {
        const BlockConversion conversion{from, to, plan::convert(type, from, to, groups.mesh, plan::Links{}),
                                         plan::convert(type, to, from, groups.mesh, plan::Links{}), &groups};
        const at::Tensor own = block_of(whole, from, groups).clone().requires_grad_();
        converted(own, conversion).backward(block_of(gradient, to, groups).contiguous());
        test::expect_equal(own.grad(), block_of(gradient, from, groups).contiguous(), "gradient");
      }
    }
  });
}

TEST(DropoutOfBlock, DropsAsOneProcessUnderEverySpec) {
  constexpr double kProbability = 0.4;
  const std::vector<int64_t> shape{4, 4, 4, 4};
  const at::Tensor whole = waves(shape, 1), want = ops::dropout(whole, kProbability, 7, {0}, 0, 4);
  on_mesh(2, 2, [&](comm::Mesh&, const MeshGroups& groups) {
    for (const plan::Spec& spec : plan::legal_specs(shape, groups.mesh)) {
      const at::Tensor got = dropout_of_block(block_of(whole, spec, groups).contiguous(), kProbability, 7, shape,
                                              block_start(shape, spec, groups));
      test::expect_equal(got, block_of(want, spec, groups).contiguous(), plan::print_spec(spec, groups.mesh));
    }
  });
}

/// Batch norm of one process: output, gradients of input, weight and bias, running statistics.
struct Normed {
  at::Tensor y, dx, dweight, dbias, mean, variance;
};

Normed whole_batch_norm(const at::Tensor& x, const at::Tensor& dy) {
  const at::Tensor in = x.clone().requires_grad_(), weight = waves({x.size(1)}, 2).requires_grad_(),
                   bias = waves({x.size(1)}, 5).requires_grad_();
  Normed made{.mean = at::zeros({x.size(1)}, at::kDouble), .variance = at::zeros({x.size(1)}, at::kDouble)};
  made.y = at::batch_norm(in, weight, bias, made.mean, made.variance, true, 1.0, 1e-5, false);
  made.y.backward(dy);
  made.dx = in.grad();
  made.dweight = weight.grad();
  made.dbias = bias.grad();
  return made;
}

TEST(BatchNormOfBlock, TakesStatisticsOverTheRowsOfAllRanks) {
  const std::vector<int64_t> shape{8, 4, 3, 3};
  const at::Tensor x = waves(shape, 0) + 10, dy = waves(shape, 9);  // squares about 0 would cancel
  const Normed want = whole_batch_norm(x, dy);
  on_mesh(2, 2, [&](comm::Mesh& mesh, const MeshGroups& groups) {
    const plan::Spec rows{1, 2, 0, 0}, channels{2};  // [data, tensor, R, R]
    const auto of = [&](const at::Tensor& whole, const plan::Spec& spec) {
      return block_of(whole, spec, groups).clone();
    };
    const at::Tensor own = of(x, rows).requires_grad_(), weight = of(waves({4}, 2), channels).requires_grad_(),
                     bias = of(waves({4}, 5), channels).requires_grad_();
    const comm::Traffic::Count before = mesh.world().traffic().total("data", "all_reduce");
    const NormedBlock made = batch_norm_of_block(own, weight, bias, {}, 1e-5, {groups.axes[0]});
    made.output.backward(of(dy, rows));
    const comm::Traffic::Count after = mesh.world().traffic().total("data", "all_reduce");
    EXPECT_EQ(after.calls - before.calls, 2);
    EXPECT_EQ(after.bytes - before.bytes, 2 * (2 * 2 * 8));  // two sums of two channels in fp64, on two ranks
    const int64_t terms = 8 * 9;
    const double conditioned = 100;  // squares about 0 have 10^2 times the variance
    const auto expect = [&](const at::Tensor& got, const at::Tensor& wanted, const char* name) {
      test::expect_within(got, wanted, conditioned * test::tolerance(wanted, terms), name);
    };
    expect(made.output, of(want.y, rows), "output");
    expect(own.grad(), of(want.dx, rows), "gradient of the input");
    expect(made.mean, of(want.mean, channels), "mean");
    expect(made.variance, of(want.variance, channels), "variance");
    at::Tensor dweight = weight.grad().clone(), dbias = bias.grad().clone();
    groups.axes[0]->all_reduce(dweight, comm::Reduce::Sum).wait();
    groups.axes[0]->all_reduce(dbias, comm::Reduce::Sum).wait();
    expect(dweight, of(want.dweight, channels), "gradient of the weight");
    expect(dbias, of(want.dbias, channels), "gradient of the bias");
  });
}

/// Two linear layers that share their weight: the first divides rows, the second does all work on every rank.
plan::Graph shared_weight() {
  plan::Graph graph;
  graph.parameters.push_back({"w", {{4, 4}, "float64"}});
  const auto add = [&](const char* name, const char* op, std::vector<std::string> inputs, std::vector<int64_t> shape) {
    graph.nodes.push_back(
        {.name = name, .op = op, .inputs = std::move(inputs), .output = {std::move(shape), "float64"}});
  };
  add("x", "input", {}, {4, 4});
  add("first", "linear", {"x", "w"}, {4, 4});
  add("second", "linear", {"first", "w"}, {4, 4});
  add("loss", "mean", {"second"}, {});
  graph.settle();
  return graph;
}

TEST(ParameterShares, CountAGradientOnceThatOneUseHasWhole) {
  const plan::Graph graph = shared_weight();
  const plan::Mesh mesh = plan::parse_mesh("data=2");
  const plan::Plan plan = plan::price_plan(graph, mesh, {}, {"data=dim0", "data=dim0", "whole", "whole"});
  const std::vector<ParameterShare> shares = parameter_shares(graph, plan);
  ASSERT_EQ(shares.size(), 1u);
  EXPECT_EQ(shares[0].gradient_axes, std::vector<std::string>{"data"});
  const auto factor = [&](int node) {
    return gradient_factor(share_of(graph, node, plan.strategies[node], mesh).gradients[1], shares[0].gradient_axes,
                           mesh);
  };
  EXPECT_EQ(factor(1), 1);
  EXPECT_EQ(factor(2), 0.5);
}

TEST(PredictedTraffic, LeavesOutTheSumsOfParameters) {
  const trace::TracedModule traced{.graph = shared_weight(), .operators = std::vector<trace::TracedOperator>(4)};
  const plan::Plan plan = plan::price_plan(traced.graph, plan::parse_mesh("data=2"), {},
                                           {"data=dim0", "data=dim0", "data=dim0", "data=dim0"});
  const auto traffic = predicted_traffic(traced, plan);
  ASSERT_EQ(traffic.size(), 1u);  // the sum of the loss
  const auto& [key, count] = *traffic.begin();
  EXPECT_EQ(key, (comm::Traffic::Key{"data", "all_reduce", comm::Phase::Forward}));
  EXPECT_EQ(count.calls, 1);
  EXPECT_EQ(count.bytes, 8);
}

/// Two results of one call, of which only the second has a gradient.
trace::TracedModule two_results() {
  trace::TracedModule traced;
  plan::Graph& graph = traced.graph;
  graph.parameters.push_back({"w", {{4, 4}, "float64"}});
  const auto add = [&](const char* name, const char* op, std::vector<std::string> inputs, std::vector<int64_t> shape,
                       const char* dtype, int call) {
    graph.nodes.push_back({.name = name, .op = op, .inputs = std::move(inputs), .output = {std::move(shape), dtype}});
    traced.operators.push_back({.call = call});
  };
  add("x", "input", {}, {4, 4, 4}, "float64", -1);
  add("y", "linear", {"x", "w"}, {4, 4, 4}, "float64", 0);
  add("indices", "adaptive_max_pool2d", {"y"}, {4, 4, 4}, "int64", 1);
  add("values", "adaptive_max_pool2d", {"y"}, {4, 4, 4}, "float64", 1);
  add("loss", "mean", {"values"}, {}, "float64", 2);
  graph.settle();
  return traced;
}

TEST(RunningNodes, RunACallOnceForTheResultWithAGradient) {
  const trace::TracedModule traced = two_results();
  const auto plan_of = [&](const char* indices) {
    return plan::price_plan(traced.graph, plan::parse_mesh("data=2"), {},
                            {"data=dim0", "data=dim0", indices, "whole", "whole"});
  };
  EXPECT_EQ(running_nodes(traced, plan_of("whole")), (std::vector<int>{0, 1, 3, 3, 4}));
  EXPECT_EQ(running_nodes(traced, plan_of("data=dim0")), (std::vector<int>{0, 1, 2, 3, 4}));
  const plan::Plan plan = plan_of("whole");
  EXPECT_EQ(plan.conversions.size(), 2u);  // of the operand of each result
  EXPECT_EQ(predicted_traffic(traced, plan).at({"data", "all_gather", comm::Phase::Forward}).calls, 1);
}

}  // namespace
}  // namespace colossal::auto_parallel::apply_test
