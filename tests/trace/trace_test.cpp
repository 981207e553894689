// Traced graphs of plain modules: their nodes, what they compute, what a trace refuses, and that modules do not change.
#include "colossal/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/plan/solver.h"
#include "trace/modules.h"

namespace colossal::trace::test {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

template <class Net, class... Arguments>
std::shared_ptr<Net> made(Arguments&&... arguments) {
  auto net = std::make_shared<Net>(std::forward<Arguments>(arguments)...);
  net->to(at::kDouble);
  fill(*net);
  return net;
}

std::vector<std::string> names_of(const plan::Graph& graph) {
  std::vector<std::string> names;
  for (const plan::Node& node : graph.nodes) names.push_back(node.name);
  return names;
}

std::vector<std::string> operators_of(const plan::Graph& graph) {
  std::vector<std::string> names;
  for (const plan::Node& node : graph.nodes) names.push_back(node.op);
  return names;
}

/// Expects that the graph's loss is the module's, bit by bit, also on other inputs than those traced, and that so are
/// the gradients.
template <class Net>
void expect_replays(Net& net, int64_t rows) {
  const TracedModule traced = trace_loss(net, loss_of(net), net.inputs(rows));
  for (const int64_t step : {0, 1}) {
    const std::vector<at::Tensor> inputs = net.inputs(rows, step);
    const at::Tensor loss = net.loss(inputs), again = replay(traced, inputs);
    EXPECT_TRUE(at::equal(loss, again)) << "step " << step << ": " << loss << " and " << again;
    std::vector<at::Tensor> trained;
    for (const at::Tensor& p : traced.parameters)
      if (p.requires_grad()) trained.push_back(p);
    const auto wanted = torch::autograd::grad({loss}, trained), got = torch::autograd::grad({again}, trained);
    for (size_t i = 0; i < trained.size(); ++i) {
      const double bound = 16 * std::numeric_limits<double>::epsilon() * static_cast<double>(rows) *
                           std::max(1.0, wanted[i].abs().max().item<double>());
      EXPECT_LE((wanted[i] - got[i]).abs().max().item<double>(), bound) << "gradient " << i;
    }
  }
}

/// Traces a function of a small module and of one input of shape [4, 8].
struct Small : torch::nn::Module {
  Small() {
    weight = register_parameter("weight", at::zeros({8}, at::kDouble));
    calls = register_buffer("calls", at::zeros({}, at::kLong));
    table = register_buffer("table", wave({4, 8}, 3));
    fill(*this);
  }
  using Body = std::function<at::Tensor(Small& net, const at::Tensor& x)>;
  TracedModule traced(const Body& body) {
    return trace_loss(*this, [&](const std::vector<at::Tensor>& in) { return body(*this, in[0]); }, {x()});
  }
  static at::Tensor x() { return wave({4, 8}, 1); }
  at::Tensor weight, calls, table;
};

/// Expects that the graph computes what the function does, and returns the graph.
TracedModule expect_same(const Small::Body& body) {
  Small net;
  const TracedModule traced = net.traced(body);
  const at::Tensor wanted = body(net, Small::x()), got = replay(traced, {Small::x()});
  EXPECT_TRUE(at::equal(wanted, got)) << wanted << " and " << got << plan::print_graph(traced.graph);
  return traced;
}

std::string refusal_of(const Small::Body& body) {
  Small net;
  try {
    net.traced(body);
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "trace");
    EXPECT_FALSE(net.weight.is_meta()) << "the module must have its parameters again";
    return error.message();
  }
  ADD_FAILURE() << "the trace must refuse the function";
  return "";
}

TEST(Trace, NamesNodesOfAnMlpByItsModules) {
  const auto net = made<Mlp>();
  const TracedModule traced = trace_loss(*net, loss_of(*net), net->inputs(8));
  EXPECT_THAT(names_of(traced.graph), ElementsAre("input_0", "input_1", "norm", "fc1", "relu", "fc2", "mse_loss"));
  EXPECT_THAT(operators_of(traced.graph),
              ElementsAre("input", "input", "layer_norm", "linear", "relu", "linear", "mse_loss"));
  EXPECT_THAT(traced.graph.nodes[3].inputs, ElementsAre("norm", "fc1.weight", "fc1.bias"));
  EXPECT_THAT(traced.warnings, IsEmpty());
}

TEST(Trace, ReplaysToTheSameLoss) {
  expect_replays(*made<Mlp>(), 8);
  expect_replays(*made<Mlp>(/*frozen=*/true), 8);
  expect_replays(*made<ConvNet>(), 4);
  expect_replays(*made<Transformer>(), 4);
  expect_replays(*made<Transformer>(2, 0.0, /*tied=*/true), 4);
  expect_replays(*made<Llama>(), 4);
}

TEST(Trace, MarksFrozenParameters) {
  const auto net = made<Mlp>(/*frozen=*/true);
  const TracedModule traced = trace_loss(*net, loss_of(*net), net->inputs(8));
  for (const plan::Parameter& parameter : traced.graph.parameters)
    EXPECT_EQ(parameter.trains, parameter.name != "fc1.bias") << parameter.name;
}

TEST(Trace, KeepsSharedWeightsOnce) {
  const auto net = made<Transformer>(1, 0.0, /*tied=*/true);
  const TracedModule traced = trace_loss(*net, loss_of(*net), net->inputs(4));
  const auto readers = std::count_if(traced.graph.nodes.begin(), traced.graph.nodes.end(), [&](const auto& node) {
    return std::count(node.inputs.begin(), node.inputs.end(), "head") +
               std::count(node.inputs.begin(), node.inputs.end(), "tokens.weight") >
           0;
  });
  EXPECT_EQ(readers, 2);
  EXPECT_EQ(traced.graph.parameters.size() + 1, net->named_parameters().size());
}

TEST(Trace, GivesEqualBlocksEqualNames) {
  const auto net = made<Transformer>(3);
  const TracedModule traced = trace_loss(*net, loss_of(*net), net->inputs(4));
  std::vector<std::vector<std::string>> blocks(3);
  for (const std::string& name : names_of(traced.graph))
    if (name.rfind("layers.", 0) == 0) blocks[name[7] - '0'].push_back(name.substr(9));
  EXPECT_EQ(blocks[0], blocks[1]);
  EXPECT_EQ(blocks[1], blocks[2]);
  EXPECT_THAT(blocks[0], Contains("scaled_dot_product_attention"));
  EXPECT_THAT(blocks[0], Contains("qkv"));
}

TEST(Trace, NamesBlocksThatHaveTheirOwnParameters) {
  const auto net = made<Llama>();
  const TracedModule traced = trace_loss(*net, loss_of(*net), net->inputs(4));
  EXPECT_THAT(names_of(traced.graph), Contains("layers.0.scaled_dot_product_attention"));
  EXPECT_THAT(names_of(traced.graph), Contains("layers.1.linear_7"));
}

TEST(Trace, RecordsStatisticsOfBatchNorm) {
  const auto net = made<ConvNet>();
  const TracedModule traced = trace_loss(*net, loss_of(*net), net->inputs(4));
  ASSERT_EQ(traced.statistics.size(), 2u);
  for (const TracedModule::Statistics& of_node : traced.statistics)
    EXPECT_EQ(traced.graph.nodes[of_node.node].op, "batch_norm");
  EXPECT_TRUE(traced.statistics[0].mean.is_same(net->bn1->running_mean));
  EXPECT_TRUE(traced.statistics[1].batches.is_same(net->bn2->num_batches_tracked));
  net->eval();
  const TracedModule fixed = trace_loss(*net, loss_of(*net), net->inputs(4));
  EXPECT_THAT(fixed.statistics, IsEmpty());
  EXPECT_THAT(names_of(fixed.graph), Contains("bn1.running_mean"));
}

TEST(Trace, MakesDropoutANode) {
  const auto net = made<Transformer>(1, 0.5);
  const TracedModule traced = trace_loss(*net, loss_of(*net), net->inputs(4));
  const auto operators = operators_of(traced.graph);
  EXPECT_EQ(std::count(operators.begin(), operators.end(), "dropout"), 2);
  net->eval();
  EXPECT_THAT(operators_of(trace_loss(*net, loss_of(*net), net->inputs(4)).graph), Each(testing::Ne("dropout")));
}

TEST(Trace, DrawsDropoutOfConstantsInEachStep) {
  Small net;
  const TracedModule traced = net.traced([](Small& n, const at::Tensor& x) {
    return (at::dropout(at::ones({8}, x.options()), 0.5, true) * x * n.weight).sum();
  });
  EXPECT_THAT(operators_of(traced.graph), Contains("dropout"));
}

TEST(Trace, TakesAttentionWithDropoutApart) {
  Small net;
  const TracedModule traced = net.traced([](Small& n, const at::Tensor& x) {
    const at::Tensor q = (x * n.weight).view({4, 2, 2, 2});
    return at::scaled_dot_product_attention(q, q, q, {}, 0.5, true).sum();
  });
  EXPECT_THAT(operators_of(traced.graph), Contains("dropout"));
  EXPECT_THAT(operators_of(traced.graph), Contains("softmax"));
}

TEST(Trace, MarksInputsWithoutRowsWhole) {
  Small net;
  const Loss loss = [&](const std::vector<at::Tensor>& in) { return ((in[0] + in[1]) * net.weight).sum() * in[2]; };
  const TracedModule traced = trace_loss(net, loss, {Small::x(), wave({1, 8}, 2), wave({}, 3)});
  EXPECT_FALSE(traced.graph.nodes[0].whole);
  EXPECT_TRUE(traced.graph.nodes[1].whole);
  EXPECT_TRUE(traced.graph.nodes[2].whole);
}

TEST(Trace, RewritesChangesInPlace) {
  expect_same([](Small& n, const at::Tensor& x) {  // a tensor that is read before and after
    at::Tensor a = x * n.weight;
    const at::Tensor before = a.exp();
    a.add_(1).mul_(a).relu_();
    return (before * a).sum();
  });
  expect_same([](Small& n, const at::Tensor& x) {  // an input
    at::Tensor a = x.clone();
    return (a.sub_(2).div_(3) * n.weight).sum();
  });
  expect_same([](Small& n, const at::Tensor& x) { return (1.0 - x * n.weight).exp().mean(); });
}

TEST(Trace, MakesViewsOfChangedTensorsAgain) {
  expect_same([](Small& n, const at::Tensor& x) {  // the base changes after the view was made
    at::Tensor a = x * n.weight;
    const at::Tensor view = a.transpose(0, 1).slice(0, 1, 5);
    a.mul_(3);
    return view.sin().sum();
  });
  expect_same([](Small& n, const at::Tensor& x) {  // views of views change; the base and another view follow
    at::Tensor a = x * n.weight;
    at::Tensor part = a.view({4, 2, 4}).transpose(1, 2).select(1, 2);
    const at::Tensor other = a.slice(1, 2, 7);
    part.fill_(5);
    a.select(0, -1).copy_(x.select(0, 0));
    a.slice(1, -3).exp_();
    return (other.sin() * part.sum()).sum() + a.cos().sum();
  });
  expect_same([](Small& n, const at::Tensor& x) {  // the base that the view leaves is read by parts of other kinds
    at::Tensor a = x * n.weight;
    a.slice(1, 2, 4).zero_();
    const std::vector<at::Tensor> parts = a.chunk(4, 1), rows = at::cat({parts[1], parts[3]}, 1).unbind(0);
    return at::stack({rows[0], rows[2]}).sum() + parts[0].sum();
  });
}

TEST(Trace, FillsTensorsThatTheLossMakes) {
  expect_same([](Small& n, const at::Tensor& x) {
    at::Tensor sum = at::zeros({8}, x.options());
    for (int64_t i = 0; i < 4; ++i) sum.add_(x.select(0, i) * n.weight);
    return sum.exp().sum();
  });
}

TEST(Trace, TakesTensorsWithoutParametersForConstants) {
  const TracedModule traced = expect_same([](Small& n, const at::Tensor& x) {
    n.calls.add_(1);  // a counter that nothing reads
    const at::Tensor mask = at::ones({4, 8}, at::kBool).tril();
    return at::where(mask, x * n.weight, at::full({}, -1.0, x.options())).add(n.table).sum();
  });
  EXPECT_THAT(names_of(traced.graph), Contains("table"));
  EXPECT_THAT(traced.warnings, IsEmpty());
}

TEST(Trace, StopsGradientsWhereTheModuleDoes) {
  const TracedModule traced = expect_same([](Small& n, const at::Tensor& x) {
    const at::Tensor y = x * n.weight;
    at::Tensor scale;
    {
      const at::NoGradGuard no_grad;
      scale = y.exp().sum();
    }
    return (y * scale * y.detach()).sum();
  });
  const at::Tensor weight = traced.parameters[0], x = Small::x(), y = (x * weight).detach();
  const at::Tensor got = torch::autograd::grad({replay(traced, {x})}, {weight})[0];
  const at::Tensor wanted = (x * y * y.exp().sum()).sum(0);
  const double bound = 4 * std::numeric_limits<double>::epsilon() * 32 * wanted.abs().max().item<double>();
  EXPECT_LE((got - wanted).abs().max().item<double>(), bound);
}

TEST(Trace, WarnsOfOperatorsWithoutStrategies) {
  const TracedModule traced = expect_same([](Small& n, const at::Tensor& x) {
    return (at::roll(at::roll(x * n.weight, 1, 0), 1, 1) + at::cumsum(x, 1)).sum();
  });
  ASSERT_EQ(traced.warnings.size(), 2u);
  EXPECT_THAT(traced.warnings, Contains(HasSubstr("aten::roll")));
  EXPECT_THAT(traced.warnings, Contains(HasSubstr("aten::cumsum")));
}

TEST(Trace, RefusesWhatAGraphCannotHold) {
  using Body = Small::Body;
  const std::vector<std::pair<const char*, Body>> cases{
      {"aten::nonzero", [](Small& n, const at::Tensor& x) { return (x * n.weight).nonzero().sum(); }},
      {"aten::item", [](Small& n, const at::Tensor& x) { return x.sum() * (n.weight.sum().item<double>()); }},
      {"aten::masked_select", [](Small& n, const at::Tensor& x) { return (x * n.weight).masked_select(x > 0).sum(); }},
      {"aten::index", [](Small& n, const at::Tensor& x) { return (x * n.weight).index({x > 0}).sum(); }},
      {"aten::randn", [](Small& n, const at::Tensor& x) { return (at::randn({8}, x.options()) * n.weight).sum(); }},
      {"aten::bernoulli", [](Small& n, const at::Tensor& x) { return (at::bernoulli(x * n.weight)).sum(); }},
      {"aten::feature_dropout",
       [](Small& n, const at::Tensor& x) { return at::feature_dropout(x * n.weight, 0.5, true).sum(); }},
      {"change a parameter",
       [](Small& n, const at::Tensor& x) {
         const at::NoGradGuard no_grad;
         n.weight.mul_(2);
         return (x * n.weight).sum();
       }},
      {"buffer table",
       [](Small& n, const at::Tensor& x) {
         n.table.copy_(x * n.weight);
         return n.table.sum();
       }},
      {"a buffer that it changes",
       [](Small& n, const at::Tensor& x) { return (x * n.weight * n.table.mul_(2)).sum(); }},
      {"must be a scalar", [](Small& n, const at::Tensor& x) { return x * n.weight; }},
      {"depend on a parameter", [](Small&, const at::Tensor& x) { return x.sum(); }},
      {"must be parameters",
       [](Small& n, const at::Tensor& x) {
         return (x * n.weight * at::ones({8}, at::kDouble).requires_grad_()).sum();
       }},
  };
  for (const auto& [named, body] : cases) EXPECT_THAT(refusal_of(body), HasSubstr(named));
}

/// A function with its own backward pass.
struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0] * 2};
  }
};

TEST(Trace, RefusesFunctionsWithTheirOwnBackward) {
  EXPECT_THAT(refusal_of([](Small& n, const at::Tensor& x) { return Doubled::apply(x * n.weight).sum(); }),
              HasSubstr("torch::autograd::Function"));
}

/// Values, gradients and flags of a module, to compare them later.
std::vector<at::Tensor> state_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> state = module.buffers();
  for (const at::Tensor& p : module.parameters()) state.push_back(p);
  for (at::Tensor& value : state) value = value.detach().clone();
  return state;
}

TEST(Trace, LeavesTheModuleUnchanged) {
  const auto net = made<ConvNet>();
  net->conv1->weight.requires_grad_(false);
  const auto before = state_of(*net);
  std::vector<void*> memory;
  for (const at::Tensor& p : net->parameters()) memory.push_back(p.data_ptr());
  trace_loss(*net, loss_of(*net), net->inputs(4));
  const Loss failing = [&](const std::vector<at::Tensor>& in) -> at::Tensor {
    net->loss(in);
    throw std::runtime_error("out of patience");
  };
  EXPECT_THROW(trace_loss(*net, failing, net->inputs(4)), std::runtime_error);
  const auto after = state_of(*net);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(net->parameters()[i].data_ptr(), memory[i]);
    EXPECT_FALSE(net->parameters()[i].grad().defined());
    EXPECT_TRUE(net->parameters()[i].is_leaf());
  }
  EXPECT_FALSE(net->conv1->weight.requires_grad());
  EXPECT_TRUE(net->conv2->weight.requires_grad());
  net->loss(net->inputs(4)).backward();  // autograd works as before
  EXPECT_TRUE(net->head->weight.grad().defined());
}

/// Expects that the graph is the same after a journey through text, and that the solver proves a plan for it.
void expect_solved(const TracedModule& traced, const std::string& mesh) {
  const plan::Graph again = plan::parse_graph(plan::print_graph(traced.graph), "graph.json");
  EXPECT_EQ(again.nodes, traced.graph.nodes);
  EXPECT_EQ(again.parameters, traced.graph.parameters);
  const plan::Plan solved = plan::solve(again, plan::parse_mesh(mesh), plan::Links{}, {});
  EXPECT_TRUE(solved.is_proven);
  EXPECT_EQ(solved.strategies.size(), again.nodes.size());
}

TEST(Trace, LeadsToProvenPlans) {
  const auto solves = [](auto net, int64_t rows) {
    expect_solved(trace_loss(*net, loss_of(*net), net->inputs(rows)), "data=2,tensor=2");
  };
  solves(made<Mlp>(), 8);
  solves(made<ConvNet>(), 4);
  solves(made<Transformer>(), 4);
  solves(made<Transformer>(2, 0.5, /*tied=*/true), 4);
  solves(made<Llama>(), 4);
}

TEST(Trace, TracesLlamaWithoutMemory) {
  const LlamaSizes sizes{.blocks = 32, .width = 4096, .heads = 32, .kv_heads = 8, .inner = 14336, .vocabulary = 128256};
  Llama net(sizes, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor ids = at::empty({8, 2048}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  const TracedModule traced = trace_loss(net, loss_of(net), {ids, ids.clone()});
  // A block: 2 norms of 6, 7 products, 4 reshapes and 4 transposes, 2 rotations of 7, attention, silu, mul, 2 sums.
  const int64_t block = 2 * 6 + 7 + 4 + 4 + 2 * 7 + 1 + 1 + 1 + 2;
  // Outside: 2 inputs, embedding, cos, sin, norm of 6, head, 2 reshapes, loss.
  EXPECT_EQ(static_cast<int64_t>(traced.graph.nodes.size()), 32 * block + 15);
  EXPECT_THAT(traced.warnings, IsEmpty());
  EXPECT_EQ(traced.graph.nodes.back().op, "cross_entropy");
}

}  // namespace
}  // namespace colossal::trace::test
