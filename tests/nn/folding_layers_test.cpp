// The layers of AlphaFold 2 against the golden values G2 to G10 of ../shared/reference/folding.md, section (c).
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/nn/alignment_layers.h"
#include "colossal/nn/pair_layers.h"
#include "colossal/nn/serial_layers.h"
#include "support/golden_numbers.h"
#include "support/thrown_message.h"

namespace colossal::nn::folding_layers_test {
namespace {

using test::golden_input;
using test::golden_sum;

/// Layers in fp64 with golden weights.
struct Golden {
  Parameters parameters{{}, {.dtype = at::kDouble}};
  SerialLayers make{parameters};
  void set(const std::vector<std::string>& layers) {
    std::vector<std::string> names;
    for (const std::string& layer : layers) names.push_back("x." + layer);
    test::set_golden(parameters, names);
  }
};

/// Returns the mask of pairs of 6 residues of which the last takes no part, for 5: the fifth.
at::Tensor without_last_residue() {
  at::Tensor residues = at::ones({5}, at::kDouble);
  residues[4] = 0;
  return (residues.unsqueeze(0) * residues.unsqueeze(1)).unsqueeze(0);
}

at::Tensor without_some_edges() {
  at::Tensor mask = at::ones({1, 5, 5}, at::kDouble);
  mask[0][2][3] = 0, mask[0][0][4] = 0, mask[0][4][1] = 0;
  return mask;
}

at::Tensor alignment_mask() {
  at::Tensor mask = at::ones({1, 3, 5}, at::kDouble);
  mask[0][2][0] = 0, mask[0][1][4] = 0;
  return mask;
}

at::Tensor pair_input() { return golden_input(.37, {1, 5, 5, 6}); }
at::Tensor alignment_input() { return golden_input(.29, {1, 3, 5, 8}); }

constexpr double kDigits = 2e-12;

/// Expects the golden sum of y and of the gradient of each input.
void expect_golden(const at::Tensor& y, double value, const std::vector<std::pair<at::Tensor, double>>& gradients) {
  EXPECT_NEAR(golden_sum(y), value, kDigits);
  test::golden_loss(y).backward();
  for (const auto& [x, sum] : gradients) EXPECT_NEAR(golden_sum(x.grad()), sum, 10 * kDigits);
}

const std::vector<std::string> kMultiplication{"linear_a_p", "linear_a_g", "linear_b_p",    "linear_b_g",
                                               "linear_g",   "linear_z",   "layer_norm_in", "layer_norm_out"};
const std::vector<std::string> kAttention{"mha.linear_q", "mha.linear_k", "mha.linear_v", "mha.linear_o",
                                          "mha.linear_g"};

std::vector<std::string> with_attention(std::vector<std::string> names) {
  names.insert(names.end(), kAttention.begin(), kAttention.end());
  return names;
}

TEST(FoldingLayers, MultiplyTriangles) {
  for (const auto triangle : {ops::Triangle::Outgoing, ops::Triangle::Incoming}) {
    Golden golden;
    const TriangleMultiplication layer(golden.make, "x", 6, {.triangle = triangle, .hidden = 6});
    golden.set(kMultiplication);
    const at::Tensor z = pair_input(), y = layer.forward(z, without_last_residue());
    if (triangle == ops::Triangle::Outgoing)
      expect_golden(y, -.5799360753678, {{z, -1.453735744108}});
    else
      expect_golden(y, -.531399245135, {{z, -1.662514769715}});
  }
}

TEST(FoldingLayers, MultiplyTrianglesInPlace) {
  for (const auto triangle : {ops::Triangle::Outgoing, ops::Triangle::Incoming})
    for (const bool fused : {false, true}) {
      Golden golden;
      const TriangleMultiplication layer(golden.make, "x", 6,
                                         {.triangle = triangle, .hidden = 4, .fused = fused, .bias = !fused});
      golden.set(fused ? std::vector<std::string>{"linear_ab_p", "linear_ab_g", "linear_g", "linear_z"}
                       : kMultiplication);
      at::Tensor z = golden_input(.37, {2, 27, 27, 6});
      const at::Tensor mask = at::arange(2 * 27 * 27, at::kDouble).remainder(7).ne(0).view({2, 27, 27});
      const at::Tensor wanted = z + layer.forward(z, mask);
      EXPECT_THAT(test::thrown_message([&] { layer.add_to(z, mask); }),
                  testing::HasSubstr("in-place multiplication must run without gradients"));
      const at::NoGradGuard no_grad;
      at::Tensor own = z.detach().clone();
      layer.add_to(own, mask);
      EXPECT_TRUE(at::allclose(own, wanted, 1e-13, 1e-13));
      own = z.detach().clone();
      layer.add_to(own, {});
      EXPECT_TRUE(at::allclose(own, z + layer.forward(z, {}), 1e-13, 1e-13));
    }
}

TEST(FoldingLayers, FuseProjectionsOfBothEdges) {
  Golden separate, fused;
  const TriangleMultiplication one(separate.make, "x", 6, {.hidden = 4});
  const TriangleMultiplication other(fused.make, "x", 6, {.hidden = 4, .fused = true});
  separate.set(kMultiplication);
  const at::NoGradGuard no_grad;
  for (Parameter& p : fused.parameters) {
    std::string name = p.name;
    const size_t at = name.find("_ab_");
    if (at == std::string::npos) {
      p.value.copy_(separate.parameters.at(name).value);
      continue;
    }
    const at::Tensor a = separate.parameters.at(name.replace(at, 4, "_a_")).value;
    p.value.copy_(at::cat({a, separate.parameters.at(name.replace(at, 3, "_b_")).value}, 0));
  }
  const at::Tensor z = pair_input();
  EXPECT_TRUE(at::allclose(one.forward(z, {}), other.forward(z, {}), 1e-13, 1e-13));
}

TEST(FoldingLayers, AttendAroundTriangles) {
  for (const bool starting : {true, false}) {
    Golden golden;
    const TriangleAttention layer(golden.make, "x", 6, {.heads = 2, .width = 4}, starting);
    golden.set(with_attention({"layer_norm", "linear"}));
    const at::Tensor z = pair_input(), y = layer.forward(z, without_some_edges());
    if (starting)
      expect_golden(y, 2.645673262244, {{z, .8429711145304}});
    else
      expect_golden(y, .8884702808174, {{z, 5.338026342827}});
  }
}

TEST(FoldingLayers, AttendAlongRowsOfAlignments) {
  Golden golden;
  const RowAttention layer(golden.make, "x", 8, 6, {.heads = 2, .width = 4});
  golden.set(with_attention({"layer_norm_m", "layer_norm_z", "linear_z"}));
  const at::Tensor m = alignment_input(), z = pair_input();
  expect_golden(layer.forward(m, z, alignment_mask()), 2.356759975532, {{m, 30.53294643604}, {z, .3854325200584}});
}

TEST(FoldingLayers, AttendAlongColumnsOfAlignments) {
  Golden golden;
  const ColumnAttention layer(golden.make, "x", 8, {.heads = 2, .width = 4});
  golden.set(with_attention({"layer_norm_m"}));
  const at::Tensor m = alignment_input();
  expect_golden(layer.forward(m, alignment_mask()), -7.350008792819, {{m, 5.368172566071}});
}

TEST(FoldingLayers, AttendGloballyAlongColumns) {
  Golden golden;
  const GlobalColumnAttention layer(golden.make, "x", 8, {.heads = 2, .width = 4});
  golden.set({"layer_norm_m", "global_attention.linear_q", "global_attention.linear_k", "global_attention.linear_v",
              "global_attention.linear_g", "global_attention.linear_o"});
  const at::Tensor m = alignment_input();
  expect_golden(layer.forward(m, alignment_mask()), -4.329832659568, {{m, -4.903264191174}});
}

TEST(FoldingLayers, AverageOuterProducts) {
  Golden golden;
  const OuterProduct layer(golden.make, "x", 8, 6, 3);
  golden.set({"layer_norm", "linear_1", "linear_2", "linear_out"});
  const at::Tensor m = alignment_input();
  expect_golden(layer.forward(m, alignment_mask(), 5), 2.452693980472, {{m, -.3354864829133}});
}

TEST(FoldingLayers, PassTransitions) {
  Golden golden;
  const Transition layer(golden.make, "x", 6, 4);
  golden.set({"layer_norm", "linear_1", "linear_2"});
  const at::Tensor z = pair_input(), y = layer.forward(z, without_last_residue());
  expect_golden(y, .766130855232, {{z, .555848290558}});
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(layer.forward(z, without_last_residue()), y));
}

TEST(FoldingLayers, StartWithOpenGatesAndSilentBranches) {
  Golden golden;
  const TriangleMultiplication layer(golden.make, "x", 6, {.hidden = 4});
  EXPECT_TRUE(at::equal(golden.parameters.at("x.linear_g.bias").value, at::ones({6}, at::kDouble)));
  EXPECT_EQ(golden.parameters.at("x.linear_g.weight").value.abs().max().item<double>(), 0);
  EXPECT_EQ(layer.forward(pair_input(), {}).abs().max().item<double>(), 0);
  EXPECT_GT(golden.parameters.at("x.linear_a_p.weight").value.abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace colossal::nn::folding_layers_test
