// Traced functions without gradients: operators of the library are nodes of their own, and the graph computes what the
// function does.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/biased.h"
#include "colossal/ops/norm.h"
#include "colossal/ops/rotary.h"
#include "colossal/ops/triangle.h"
#include "colossal/trace/trace.h"
#include "support/thrown_message.h"
#include "trace/modules.h"

namespace colossal::trace::function_test {
namespace {

using test::wave;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> operators_of(const TracedModule& traced) {
  std::vector<std::string> names;
  for (const plan::Node& node : traced.graph.nodes) names.push_back(node.op);
  return names;
}

/// Expects that the graph computes what the function does, on inputs that only the pass has.
TracedModule expect_same(const Function& function, const std::vector<at::Tensor>& inputs,
                         const std::vector<Captured>& captured = {}) {
  const at::NoGradGuard no_grad;
  const auto copies = [&] {
    std::vector<at::Tensor> all;
    for (const at::Tensor& input : inputs) all.push_back(input.clone());
    return all;
  };
  TracedModule traced = trace_function(function, inputs, captured);
  const std::vector<at::Tensor> wanted = function(copies()), got = replay_function(traced, copies());
  EXPECT_EQ(wanted.size(), got.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(at::equal(wanted[i], got[i])) << i;
  return traced;
}

TEST(TraceFunction, MakesOneNodeOfAnOperatorOfTheLibrary) {
  const at::Tensor weight = wave({8}, 1), bias = wave({8}, 2);
  const TracedModule traced = expect_same(
      [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        const at::Tensor x = ops::layer_norm(in[0], weight, bias, 1e-5);
        return {ops::triangle_product(x, x, ops::Triangle::Incoming), ops::sigmoid_gate(x, ops::gelu(x))};
      },
      {wave({1, 5, 5, 8}, 3)}, {{"norm.weight", weight}, {"norm.bias", bias}});
  EXPECT_THAT(operators_of(traced), ElementsAre("input", "colossal::layer_norm", "colossal::triangle_product",
                                                "colossal::gelu_tanh", "colossal::sigmoid_gate"));
  EXPECT_EQ(traced.graph.nodes[1].name, "norm");
  EXPECT_EQ(traced.operators[2].dims, "bKic,bKjc->bijc");
  EXPECT_EQ(traced.outputs.size(), 2u);
}

TEST(TraceFunction, GivesAttentionItsMasksAgain) {
  const TracedModule traced = expect_same(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        const at::Tensor q = in[0].view({1, 4, 6, 2, 8}).transpose(2, 3), bias = in[1];
        const at::Tensor one = q.select(1, 0);
        return {ops::biased_attention(q, q, q, {.bias = bias, .keys = in[2].ne(0), .scale = .5}),
                ops::attention(one, one, one, {.causal = true, .documents = in[3]})};
      },
      {wave({1, 4, 6, 16}, 1), wave({1, 2, 6, 6}, 2), at::ones({1, 4, 6}), at::arange(6).div(3, "floor").view({1, 6})});
  EXPECT_THAT(operators_of(traced), Contains("colossal::biased_attention"));
  EXPECT_THAT(operators_of(traced), Contains("colossal::attention"));
}

TEST(TraceFunction, ReadsLaterValuesOfWhatItCaptured) {
  at::Tensor weight = wave({8}, 1);
  const TracedModule traced = trace_function(
      [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {in[0] * weight.exp(), weight}; },
      {wave({2, 8}, 2).to(at::kMeta)}, {{"weight", weight}});
  weight.mul_(2);
  const at::Tensor x = wave({2, 8}, 3);
  EXPECT_TRUE(at::equal(replay_function(traced, {x})[0], x * weight.exp()));
  EXPECT_TRUE(at::equal(replay_function(traced, {x})[1], weight));
}

TEST(TraceFunction, RewritesChangesOfInputs) {
  expect_same(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        at::Tensor x = in[0];
        x.add_(x.exp()).clamp_min_(0);
        return {x};
      },
      {wave({2, 8}, 2)});
}

TEST(TraceFunction, TurnsPositionsThatTheFunctionHas) {
  const ops::RotaryTable table(4, 1e4);
  const at::Tensor positions = at::arange(6).view({2, 3});
  const TracedModule traced = expect_same(
      [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        const auto [q, k] = ops::rotary(in[0], in[0] * 2, positions, table);
        return {q, k};
      },
      {wave({2, 3, 2, 4}, 1)});
  EXPECT_THAT(operators_of(traced), Contains("colossal::rotary"));
}

TEST(TraceFunction, RecordsWhatHasAStandInOnMeta) {
  expect_same(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {ops::activation("relu").plain(in[0]), ops::activation("leaky_relu").plain(in[0])};
      },
      {wave({2, 8}, 2)});
}

/// An operator with shapes of its own on meta that does not announce itself.
at::Tensor silent(const at::Tensor& x) { return x.is_meta() ? at::empty(x.sizes(), x.options()) : x + 1; }

TEST(TraceFunction, RefusesMemoryThatNothingFilled) {
  const Function function = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {in[0] * silent(in[0])};
  };
  EXPECT_THAT(colossal::test::thrown_message([&] { trace_function(function, {wave({2, 8}, 2)}); }),
              HasSubstr("must announce itself"));
  expect_same(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {in[0] * at::empty({8}, in[0].options()).fill_(2) + at::empty({8}, in[0].options()).copy_(in[0][0])};
      },
      {wave({2, 8}, 2)});
}

TEST(TraceFunction, RefusesAShapeWithoutSource) {
  const at::Tensor weight = at::empty({8}, at::TensorOptions(at::kMeta).dtype(at::kDouble));
  const Function function = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {in[0] * weight};
  };
  EXPECT_THAT(colossal::test::thrown_message([&] { trace_function(function, {wave({2, 8}, 2)}); }),
              HasSubstr("capture what a function reads"));
  EXPECT_EQ(trace_function(function, {wave({2, 8}, 2)}, {{"weight", weight}}).graph.parameters.size(), 1u);
}

}  // namespace
}  // namespace colossal::trace::function_test
