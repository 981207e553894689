// A few outputs per token: whole on every rank in every mode, with the gradients of one loss.
#include "colossal/nn/outputs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/few_outputs.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::outputs_test {
namespace {

using parallel::Layout;
using parallel::TensorConfig;
using testing::HasSubstr;

constexpr int64_t kHidden = 36, kOutputs = 3;

at::Tensor values(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(9, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

struct Results {
  at::Tensor outputs, hidden_gradient;  // the gradient: this rank's part
  std::map<std::string, at::Tensor> gradients;
};

/// Computes the outputs; `x` is this rank's part of the hidden states.
Results run_outputs(nn::Layers& make, comm::Mesh& mesh, bool bias, const at::Tensor& x,
                    const nn::ForwardContext& step) {
  nn::Parameters& parameters = make.parameters();
  const auto outputs = make.outputs("head.values", kHidden, kOutputs, {.bias = bias});
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.copy_(local_part(values(p.spec.shape, p.name), p.spec, mesh.coordinates()));
  }
  memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
  parallel::GradientReducer reducer(store, {.sums = at::kDouble});
  const at::Tensor leaf = x.contiguous().requires_grad_();
  reducer.begin(true);
  const at::Tensor y = outputs->forward(leaf, step);
  // Each row's tokens change the weight of the others.
  (y * values(y.sizes().vec(), "weights")).sum(1).square().sum().backward();
  reducer.finish();
  Results r{.outputs = y.detach(), .hidden_gradient = leaf.grad()};
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

struct Case {
  TensorConfig tensor{};
  parallel::SequenceConfig sequence{};
  int64_t tokens = 6;
  bool bias = true;
};

void check(const Case& c, bool collectives_off = false) {
  const at::Tensor x = values({parallel::batch_parts(c.tensor) * 2, c.tokens, kHidden}, "x");
  Results want;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers make(parameters);
    want = run_outputs(make, mesh, c.bias, x.clone(), {});
  });
  std::vector<comm::Mesh::Axis> axes = parallel::sequence_axes(c.sequence);
  for (const comm::Mesh::Axis& axis : parallel::tensor_axes(c.tensor)) axes.push_back(axis);
  comm::run_ranks(
      static_cast<int>(c.tensor.size * c.sequence.size),
      [&](comm::World& world) {
        comm::Mesh mesh(world, axes);
        nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
        const Layout layout = parallel::with_sequence(parallel::make_layout(c.tensor, mesh), c.sequence);
        parallel::TensorLayers make(parameters, layout);
        const nn::ForwardContext step = layout.with_cut({}, c.tokens);
        const auto part = [&](const at::Tensor& whole) {
          return parallel::part_of(layout, layout.outside, whole, step).clone();
        };
        const Results got = run_outputs(make, mesh, c.bias, part(x), step);
        // Sums over features, then over tokens, then over outputs.
        const int64_t terms = kHidden * x.size(0) * c.tokens * kOutputs;
        expect_close(got.outputs, want.outputs, terms, "outputs");
        expect_close(got.hidden_gradient, part(want.hidden_gradient), terms, "gradient of the hidden state");
        for (const nn::Parameter& p : parameters)
          expect_close(got.gradients.at(p.name), local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()),
                       terms, "gradient of " + p.name);
      },
      {.collectives_off = collectives_off});
}

class OutputModes : public testing::TestWithParam<TensorConfig> {};

TEST_P(OutputModes, EqualsOneProcess) {
  for (const bool bias : {true, false}) EXPECT_NO_THROW(check({.tensor = GetParam(), .bias = bias}));
  const bool has_copies = GetParam().mode == "1d" && !GetParam().sequence;
  if (has_copies)
    EXPECT_NO_THROW(check({.tensor = GetParam()}, true)) << "ranks with the same hidden states send nothing";
  else
    EXPECT_THROW(check({.tensor = GetParam()}, true), ParityError);
}

INSTANTIATE_TEST_SUITE_P(Modes, OutputModes, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

// 7 tokens, so that ranks have unequal numbers.
TEST(Outputs, EqualsOneProcessForSplitSequences) {
  for (const parallel::SequenceConfig& sequence : sequence_modes())
    for (const int64_t tokens : {8, 7}) {
      SCOPED_TRACE(concat(sequence.mode, ", tokens ", tokens));
      EXPECT_NO_THROW(check({.sequence = sequence, .tokens = tokens}));
      EXPECT_THROW(check({.sequence = sequence, .tokens = tokens}, true), ParityError);
    }
}

TEST(Outputs, EqualsTheFormulaOnOneProcess) {
  nn::Parameters parameters(tensor::MeshCoordinates{}, {.dtype = at::kDouble});
  nn::SerialLayers make(parameters);
  const auto outputs = make.outputs("head.values", kHidden, kOutputs, {});
  const at::Tensor weight = parameters.at("head.values.weight").value, bias = parameters.at("head.values.bias").value;
  const at::NoGradGuard no_grad;
  bias.copy_(values({kOutputs}, "bias"));
  const at::Tensor x = values({2, 4, kHidden}, "x");
  EXPECT_NO_THROW(expect_close(outputs->forward(x, {}), x.matmul(weight.t()) + bias, kHidden, "outputs"));
}

// A model of 16 bits may end in outputs of fp32.
TEST(Outputs, ComputesInTheDtypeOfItsInput) {
  for (const bool bias : {true, false}) {
    at::Tensor serial, sharded;
    const at::Tensor x = values({2, 4, kHidden}, "x").to(at::kFloat);
    const auto run = [&](nn::Layers& make) {
      const auto outputs = make.outputs("head.values", kHidden, kOutputs, {.bias = bias});
      for (nn::Parameter& p : make.parameters()) {
        const at::NoGradGuard no_grad;
        p.value.copy_(values(p.spec.shape, p.name));
      }
      const at::Tensor y = outputs->forward(x, {});
      EXPECT_EQ(y.scalar_type(), at::kFloat);
      y.sum().backward();
      const at::Tensor& weight = make.parameters().at("head.values.weight").value;
      EXPECT_EQ(weight.grad().scalar_type(), at::kBFloat16);
      const at::Tensor added = bias ? make.parameters().at("head.values.bias").value.to(at::kFloat) : at::zeros({1});
      expect_close(y, x.matmul(weight.to(at::kFloat).t()) + added, kHidden, "outputs");
      return y.detach();
    };
    nn::Parameters parameters(tensor::MeshCoordinates{}, {.dtype = at::kBFloat16});
    nn::SerialLayers layers(parameters);
    serial = run(layers);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {{"data", 1}});
      nn::Parameters own(mesh.coordinates(), {.dtype = at::kBFloat16});
      parallel::TensorLayers make(own, parallel::make_layout({}, mesh));
      sharded = run(make);
    });
    EXPECT_TRUE(at::equal(sharded, serial));
  }
}

// As decoding needs it, where a text must have the same score beside any other.
TEST(Outputs, ComputesRowsApart) {
  const at::Tensor x = at::randn({37, 129}), weight = at::randn({2, 129}), bias = at::randn({2});
  const at::Tensor all = nn::few_outputs(x, weight, bias, true);
  for (int64_t row = 0; row < x.size(0); ++row)
    EXPECT_TRUE(at::equal(nn::few_outputs(x.narrow(0, row, 1), weight, bias, true)[0], all[row])) << row;
  expect_close(all, x.matmul(weight.t()) + bias, 129, "outputs");
}

TEST(Outputs, RefusesZeroOutputs) {
  nn::Parameters parameters(tensor::MeshCoordinates{}, {});
  nn::SerialLayers make(parameters);
  const std::string want = "[model] outputs must be 1 or more: got 0 for head.values";
  EXPECT_THAT(thrown_message([&] { make.outputs("head.values", kHidden, 0, {}); }), HasSubstr(want));
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    parallel::TensorLayers layers(parameters, parallel::make_layout({}, mesh));
    EXPECT_THAT(thrown_message([&] { layers.outputs("head.values", kHidden, 0, {}); }), HasSubstr(want));
  });
}

}  // namespace
}  // namespace colossal::test::outputs_test
