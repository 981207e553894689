// A mixture of experts over ranks against one process, in fp64: outputs, losses and all gradients, under every mode of
// tensor parallelism, with rows dealt over "data" and "expert". With collectives off each case must fail.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "colossal/comm/run_ranks.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/activation.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::experts_parity_test {
namespace {

using nn::ExpertOptions;
using parallel::Layout;

constexpr int64_t kRows = 8, kSequence = 6, kHidden = 12, kFfn = 10;

struct Case {
  std::string name;
  int data, expert;
  parallel::TensorConfig tensor{};
  bool splits = false;
  int64_t node = 0;
  bool compresses = false;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

ExpertOptions options_of(int64_t count, int64_t used) {
  return {.count = count,
          .used = used,
          .ffn = kFfn,
          .balance_loss = 0.3,
          .z_loss = 0.1,
          .activation = [](const at::Tensor& x) { return ops::swiglu(x); },
          .gated = true,
          .deviation = 0.5,
          .down_deviation = 0.5};
}

/// What a comparison changes before it runs: the same on one process and on many.
enum class Weights : uint8_t {
  Drawn,
  EqualScores,  ///< all tokens choose the lowest experts; the others get none
  Swapped       ///< experts 0 and 1 have each other's weights: a wrong reference
};

struct Result {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> gradients;
  at::Tensor reports;
};

/// Returns multiples of 1/8 below 2. They have the four significant bits of e4m3, whatever the scale of their block.
at::Tensor exact_in_fp8(at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(8);
  return at::randint(-15, 16, sizes, generator, at::kDouble).div_(8);
}

at::Tensor random(const char* what, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(what[0]);
  return at::randn(sizes, generator, at::kDouble);
}

void change(nn::Parameters& parameters, Weights weights) {
  const at::NoGradGuard no_grad;
  for (nn::Parameter& p : parameters) {
    const at::Tensor value = p.value.detach();
    if (p.name == "mlp.router.weight") {
      if (weights == Weights::EqualScores) value.zero_();
    } else if (weights == Weights::Swapped) {
      const at::Tensor first = value[0].clone();
      value[0].copy_(value[1]);
      value[1].copy_(first);
    }
  }
}

/// Runs the layer forward and backward. `part` cuts this rank's part of whole hidden states.
template <class Part>
Result run(nn::Parameters& parameters, nn::Layers& make, const ExpertOptions& options, Weights weights, bool compresses,
           const Part& part) {
  const auto experts = make.experts("mlp", kHidden, options);
  change(parameters, weights);
  const std::vector<int64_t> sizes{kRows, kSequence, kHidden};
  const at::Tensor whole = compresses ? exact_in_fp8(sizes) : random("x", sizes), g = random("g", sizes);
  const at::Tensor x = part(whole).clone().requires_grad_();
  const auto reports = std::make_shared<nn::ReportAccumulator>(make.reports(), at::kCPU);
  nn::ForwardContext step;
  step.training = true;
  step.parts.set(nn::ReportsOfStep{reports});
  const at::Tensor y = experts->forward(x, step);
  torch::autograd::backward({(y * part(g)).sum()}, {});
  Result result{.y = y.detach(), .dx = x.grad(), .reports = reports->values()};
  for (nn::Parameter& p : parameters) result.gradients[p.name] = p.value.grad();
  return result;
}

Result serial(const ExpertOptions& options, Weights weights, bool compresses) {
  nn::Parameters parameters({}, {.dtype = at::kDouble, .seed = 4});
  nn::SerialLayers make(parameters);
  return run(parameters, make, options, weights, compresses, [](const at::Tensor& x) { return x; });
}

void compare(comm::World& world, const Case& c, const ExpertOptions& options, Weights weights, const Result& want) {
  std::vector<comm::Mesh::Axis> axes{comm::Mesh::batch("data", c.data), comm::Mesh::batch("expert", c.expert)};
  for (const auto& axis : parallel::tensor_axes(c.tensor)) axes.push_back(axis);
  comm::Mesh mesh(world, axes);
  Layout layout = parallel::make_layout(c.tensor, mesh);
  layout.splits_experts = c.splits;
  layout.expert_node = c.node;
  layout.compresses_tokens = c.compresses;
  nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 4});
  parallel::TensorLayers make(parameters, layout);
  const int64_t replicas = c.data * c.expert, replica = mesh.coordinates().index(mesh.coordinates().row_axes());
  const auto part = [&](const at::Tensor& whole) {
    return parallel::part_of(layout, layout.outside, whole.narrow(0, replica * kRows / replicas, kRows / replicas));
  };
  const Result got = run(parameters, make, options, weights, c.compresses, part);
  const int64_t terms = kRows * kSequence * kHidden * kFfn;
  expect_close(got.y, part(want.y), terms, "y");
  expect_close(got.dx, part(want.dx), terms, "dx");
  expect_close(got.reports, want.reports, terms, "reports");
  for (const nn::Parameter& p : parameters) {
    at::Tensor sum = got.gradients.at(p.name).contiguous().clone();
    mesh.group(p.spec.gradient_axes).all_reduce(sum, comm::Reduce::Sum).wait();
    expect_close(sum, local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()), terms, p.name);
  }
}

class ExpertsParity : public testing::TestWithParam<Case> {};

TEST_P(ExpertsParity, EqualsOneProcess) {
  const Case& c = GetParam();
  const int ranks = c.data * c.expert * static_cast<int>(c.tensor.size);
  std::vector<ExpertOptions> variants{options_of(8, 2), options_of(4, 3), options_of(8, 2), options_of(8, 1)};
  variants[1].linear_bias = true;
  variants[1].score = ExpertOptions::Score::Sigmoid;
  variants[2].capacity = 0.7;
  variants[3].normalize = false;  // a single weight divided by itself has no gradient
  for (size_t i = 0; i < variants.size(); ++i) {
    SCOPED_TRACE(i);
    const Weights weights = i == 3 ? Weights::EqualScores : Weights::Drawn;
    const Result want = serial(variants[i], weights, c.compresses);
    const auto all = [&](comm::World& world) { compare(world, c, variants[i], weights, want); };
    EXPECT_NO_THROW(comm::run_ranks(ranks, all));
    if (ranks > 1) {
      EXPECT_THROW(comm::run_ranks(ranks, all, {.collectives_off = true}), std::exception);
    }
  }
}

// The comparison sees two experts that have changed places.
TEST_P(ExpertsParity, DiffersFromOneProcessWithTwoExpertsSwapped) {
  const Case& c = GetParam();
  const int ranks = c.data * c.expert * static_cast<int>(c.tensor.size);
  const Result wrong = serial(options_of(8, 2), Weights::Swapped, c.compresses);
  EXPECT_THROW(
      comm::run_ranks(ranks, [&](comm::World& world) { compare(world, c, options_of(8, 2), Weights::Drawn, wrong); }),
      ParityError);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ExpertsParity,
    testing::Values(Case{"one", 1, 1}, Case{"data2", 2, 1}, Case{"expert2", 1, 2}, Case{"expert4", 1, 4},
                    Case{"data2_expert2", 2, 2}, Case{"expert8", 1, 8}, Case{"tensor2", 1, 1, {.size = 2}},
                    Case{"tensor3", 1, 1, {.size = 3}}, Case{"expert2_tensor2", 1, 2, {.size = 2}},
                    Case{"data2_expert2_tensor2", 2, 2, {.size = 2}},
                    Case{"sequence_form", 2, 1, {.size = 2, .sequence = true}},
                    Case{"expert2_sequence_form", 1, 2, {.size = 3, .sequence = true}},
                    Case{"tensor4_2d", 1, 1, {.size = 4, .mode = "2d"}},
                    Case{"expert2_tensor4_2d", 1, 2, {.size = 4, .mode = "2d"}},
                    Case{"tensor8_2_5d", 1, 1, {.size = 8, .mode = "2.5d", .depth = 2}},
                    Case{"tensor8_3d", 1, 1, {.size = 8, .mode = "3d"}}, Case{"split2", 1, 1, {.size = 2}, true},
                    Case{"expert2_split2", 1, 2, {.size = 2}, true},
                    Case{"data2_expert2_split2_sequence", 2, 2, {.size = 2, .sequence = true}, true}),
    testing::PrintToStringParamName());

Case with_node(Case c, int64_t node) {
  c.name += "_node" + std::to_string(node);
  c.node = node;
  return c;
}

Case in_fp8(Case c) {
  c.name += "_fp8";
  c.compresses = true;
  return c;
}

INSTANTIATE_TEST_SUITE_P(
    Nodes, ExpertsParity,
    testing::Values(with_node({"expert2", 1, 2}, 2), with_node({"expert4", 1, 4}, 2), with_node({"expert4", 1, 4}, 4),
                    with_node({"data2_expert2", 2, 2}, 2), with_node({"expert8", 1, 8}, 2),
                    with_node({"expert8", 1, 8}, 4), with_node({"tensor2", 1, 1, {.size = 2}}, 2),
                    with_node({"tensor3", 1, 1, {.size = 3}}, 3), with_node({"expert2_tensor2", 1, 2, {.size = 2}}, 2),
                    with_node({"data2_expert2_tensor2", 2, 2, {.size = 2}}, 2),
                    with_node({"sequence_form", 2, 1, {.size = 2, .sequence = true}}, 2),
                    with_node({"expert2_sequence_form", 1, 2, {.size = 3, .sequence = true}}, 2),
                    with_node({"tensor4_2d", 1, 1, {.size = 4, .mode = "2d"}}, 2),
                    with_node({"expert2_tensor4_2d", 1, 2, {.size = 4, .mode = "2d"}}, 2),
                    with_node({"tensor8_2_5d", 1, 1, {.size = 8, .mode = "2.5d", .depth = 2}}, 2),
                    with_node({"tensor8_3d", 1, 1, {.size = 8, .mode = "3d"}}, 2),
                    with_node({"expert2_split2", 1, 2, {.size = 2}, true}, 2),
                    with_node({"data2_expert2_split2_sequence", 2, 2, {.size = 2, .sequence = true}, true}, 2)),
    testing::PrintToStringParamName());

// Hidden states that e4m3 holds exactly: compression must change nothing, and one process is the reference.
INSTANTIATE_TEST_SUITE_P(
    Fp8, ExpertsParity,
    testing::Values(in_fp8({"one", 1, 1}), in_fp8({"expert4", 1, 4}), in_fp8(with_node({"expert8", 1, 8}, 2)),
                    in_fp8({"expert2_tensor2", 1, 2, {.size = 2}}),
                    in_fp8(with_node({"expert2_sequence_form", 1, 2, {.size = 3, .sequence = true}}, 3)),
                    in_fp8({"expert2_tensor4_2d", 1, 2, {.size = 4, .mode = "2d"}}),
                    in_fp8({"expert2_split2", 1, 2, {.size = 2}, true})),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace colossal::test::experts_parity_test
