// The blocks of AlphaFold 2 and ESMFold against the golden values G11 to G13 of ../shared/reference/folding.md.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/models/esmfold_block.h"
#include "colossal/models/evoformer_block.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/serial_layers.h"
#include "support/golden_numbers.h"
#include "support/thrown_message.h"

namespace colossal::models::folding_blocks_test {
namespace {

using test::golden_input;
using test::golden_sum;

constexpr double kDigits = 2e-11;

std::vector<std::string> names_of(const std::string& layer, const std::vector<std::string>& parts) {
  std::vector<std::string> names;
  for (const std::string& part : parts) names.push_back(layer + "." + part);
  return names;
}

void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

std::vector<std::string> attention_of(std::vector<std::string> norms) {
  append(norms, {"mha.linear_q", "mha.linear_k", "mha.linear_v", "mha.linear_o", "mha.linear_g"});
  return norms;
}

/// Returns the layers of an Evoformer block in the order of OpenFold's state dict.
std::vector<std::string> evoformer_layers() {
  std::vector<std::string> all;
  append(all, names_of("x.msa_att_row", attention_of({"layer_norm_m", "layer_norm_z", "linear_z"})));
  append(all, names_of("x.msa_transition", {"layer_norm", "linear_1", "linear_2"}));
  append(all, names_of("x.outer_product_mean", {"layer_norm", "linear_1", "linear_2", "linear_out"}));
  for (const char* triangle : {"x.pair_stack.tri_mul_out", "x.pair_stack.tri_mul_in"})
    append(all, names_of(triangle, {"linear_g", "linear_z", "layer_norm_in", "layer_norm_out", "linear_a_p",
                                    "linear_a_g", "linear_b_p", "linear_b_g"}));
  for (const char* attention : {"x.pair_stack.tri_att_start", "x.pair_stack.tri_att_end"})
    append(all, names_of(attention, attention_of({"layer_norm", "linear"})));
  append(all, names_of("x.pair_stack.pair_transition", {"layer_norm", "linear_1", "linear_2"}));
  append(all, names_of("x.msa_att_col._msa_att", attention_of({"layer_norm_m"})));
  return all;
}

EvoformerSizes tiny_sizes(bool outer_first) {
  return {.alignment = 8,
          .pair = 6,
          .rows = {.heads = 2, .width = 4},
          .edges = {.heads = 2, .width = 4},
          .outer = 3,
          .triangle = 6,
          .outer_first = outer_first};
}

EvoformerMasks tiny_masks() {
  EvoformerMasks masks{.alignment = at::ones({1, 3, 5}, at::kDouble), .pair = at::ones({1, 5, 5}, at::kDouble)};
  masks.alignment[0][2][0] = 0, masks.alignment[0][1][4] = 0;
  return masks;
}

struct BlockGolden {
  double m, z, dm, dz;
};

void expect_evoformer(bool outer_first, const BlockGolden& golden) {
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers make(parameters);
  const EvoformerBlock block(make, "x", tiny_sizes(outer_first));
  test::set_golden(parameters, evoformer_layers());
  const nn::ForwardContext step;
  const Evoformer in{golden_input(.29, {1, 3, 5, 8}), golden_input(.37, {1, 5, 5, 6})};
  const Evoformer out = block.forward(in, tiny_masks(), step);
  EXPECT_NEAR(golden_sum(out.m), golden.m, kDigits);
  EXPECT_NEAR(golden_sum(out.z), golden.z, kDigits);
  (test::golden_loss(out.m) + test::golden_loss(out.z)).backward();
  EXPECT_NEAR(golden_sum(in.m.grad()), golden.dm, 10 * kDigits);
  EXPECT_NEAR(golden_sum(in.z.grad()), golden.dz, 10 * kDigits);
  const at::NoGradGuard no_grad;
  const Evoformer again = block.forward({in.m.detach().clone(), in.z.detach().clone()}, tiny_masks(), step);
  EXPECT_TRUE(at::allclose(again.m, out.m, 1e-13, 1e-13));
  EXPECT_TRUE(at::allclose(again.z, out.z, 1e-13, 1e-13));
}

TEST(FoldingBlocks, PassAnEvoformerBlock) {
  expect_evoformer(false, {10.19721085951, 6.50379170467, 83.87674770747, 76.109036016});
}

TEST(FoldingBlocks, PutTheOuterProductFirst) {
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers make(parameters);
  const EvoformerBlock block(make, "x", tiny_sizes(true));
  test::set_golden(parameters, evoformer_layers());
  const Evoformer out =
      block.forward({golden_input(.29, {1, 3, 5, 8}), golden_input(.37, {1, 5, 5, 6})}, tiny_masks(), {});
  EXPECT_NEAR(golden_sum(out.m), 9.943129880865, kDigits);
  EXPECT_NEAR(golden_sum(out.z), 6.283130886807, kDigits);
}

/// Expects that a recomputed block gives the gradients of the block: its first pass must not overwrite its inputs.
template <class Run>
void expect_same_recomputed(const Run& run, const at::Tensor& a, const at::Tensor& b) {
  const auto gradients = [&](const auto& pass) {
    const at::Tensor x = a.detach().clone(), y = b.detach().clone().requires_grad_();  // x is that of a frozen layer
    const std::vector<at::Tensor> out = pass({x, y});
    (test::golden_loss(out[0]) + test::golden_loss(out[1])).backward();
    return y.grad();
  };
  const nn::Nary function = run;
  const at::Tensor wanted = gradients(function);
  EXPECT_TRUE(gradients([&](const std::vector<at::Tensor>& in) { return nn::recomputed(function, in); }).equal(wanted));
}

TEST(FoldingBlocks, GiveTheSameGradientsRecomputed) {
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers make(parameters);
  const EvoformerBlock block(make, "x", tiny_sizes(false));
  test::set_golden(parameters, evoformer_layers());
  const auto evoformer = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const Evoformer out = block.forward({in[0], in[1]}, tiny_masks(), {});
    return {out.m, out.z};
  };
  expect_same_recomputed(evoformer, golden_input(.29, {1, 3, 5, 8}), golden_input(.37, {1, 5, 5, 6}));
  const EsmFoldBlock trunk(make, "y", {.sequence = 8, .pair = 6, .sequence_width = 4, .pair_width = 3});
  const auto esmfold = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const EsmFoldTrunk out = trunk.forward({in[0], in[1]}, {}, {});
    return {out.s, out.z};
  };
  expect_same_recomputed(esmfold, golden_input(.23, {1, 5, 8}), golden_input(.37, {1, 5, 5, 6}));
}

TEST(FoldingBlocks, CountTheParametersOfAlphaFold) {
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers make(parameters);
  const EvoformerBlock block(make, "x", {});
  EXPECT_EQ(parameters.numel(), 1829952);
  nn::Parameters extra({}, {.without_memory = true});
  nn::SerialLayers make_extra(extra);
  const EvoformerBlock of_extra_rows(make_extra, "x",
                                     {.alignment = 64, .rows = {.heads = 8, .width = 8}, .global = true});
  EXPECT_EQ(4 * extra.numel(), 2805248);
  nn::Parameters trunk({}, {.without_memory = true});
  nn::SerialLayers make_trunk(trunk);
  const EsmFoldBlock of_trunk(make_trunk, "x", {});
  EXPECT_EQ(trunk.numel(), 14293888);
}

TEST(FoldingBlocks, PassAnEsmFoldBlock) {
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers make(parameters);
  const EsmFoldBlock block(make, "x", {.sequence = 8, .pair = 6, .sequence_width = 4, .pair_width = 3});
  std::vector<std::string> all{"x.layernorm_1"};
  append(all, names_of("x.sequence_to_pair", {"layernorm", "proj", "o_proj"}));
  append(all, names_of("x.pair_to_sequence", {"layernorm", "linear"}));
  append(all, names_of("x.seq_attention", {"proj", "o_proj", "g_proj"}));
  for (const char* triangle : {"x.tri_mul_out", "x.tri_mul_in"})
    append(all, names_of(triangle, {"linear_a_p", "linear_a_g", "linear_b_p", "linear_b_g", "linear_g", "linear_z",
                                    "layer_norm_in", "layer_norm_out"}));
  for (const char* attention : {"x.tri_att_start", "x.tri_att_end"})
    append(all, names_of(attention, attention_of({"layer_norm", "linear"})));
  for (const char* mlp : {"x.mlp_seq", "x.mlp_pair"})
    append(all, names_of(mlp, {"layer_norm", "linear_1", "linear_2"}));
  test::set_golden(parameters, all);
  const EsmFoldTrunk in{golden_input(.23, {1, 5, 8}), golden_input(.37, {1, 5, 5, 6})};
  const EsmFoldTrunk out = block.forward(in, {}, {});
  EXPECT_NEAR(golden_sum(out.s), -14.37760510674, kDigits);
  EXPECT_NEAR(golden_sum(out.z), -.6840408874164, kDigits);
  (test::golden_loss(out.s) + test::golden_loss(out.z)).backward();
  EXPECT_NEAR(golden_sum(in.s.grad()), 14.55957496879, 10 * kDigits);
  EXPECT_NEAR(golden_sum(in.z.grad()), 74.37907768961, 10 * kDigits);
  const at::NoGradGuard no_grad;
  const EsmFoldTrunk again = block.forward({in.s.detach().clone(), in.z.detach().clone()}, {}, {});
  EXPECT_TRUE(at::allclose(again.s, out.s, 1e-13, 1e-13));
  EXPECT_TRUE(at::allclose(again.z, out.z, 1e-13, 1e-13));
}

TEST(FoldingBlocks, IgnoreResiduesBeyondTheMask) {
  nn::Parameters parameters({}, {.dtype = at::kDouble, .seed = 5});
  nn::SerialLayers make(parameters);
  const EsmFoldBlock block(make, "x", {.sequence = 8, .pair = 6, .sequence_width = 4, .pair_width = 3});
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.add_(at::linspace(-.3, .3, p.value.numel(), at::kDouble).view_as(p.value));
  }
  const at::NoGradGuard no_grad;
  const EsmFoldTrunk alone = block.forward(
      {golden_input(.23, {1, 5, 8}).detach().clone(), golden_input(.37, {1, 5, 5, 6}).detach().clone()}, {}, {});
  at::Tensor s = at::ones({1, 7, 8}, at::kDouble), z = at::ones({1, 7, 7, 6}, at::kDouble),
             mask = at::ones({1, 7}, at::kDouble);
  s.narrow(1, 0, 5).copy_(golden_input(.23, {1, 5, 8}));
  z.narrow(1, 0, 5).narrow(2, 0, 5).copy_(golden_input(.37, {1, 5, 5, 6}));
  mask.narrow(1, 5, 2).fill_(0);
  const EsmFoldTrunk padded = block.forward({s, z}, mask, {});
  EXPECT_TRUE(at::allclose(padded.s.narrow(1, 0, 5), alone.s, 1e-13, 1e-13));
  EXPECT_TRUE(at::allclose(padded.z.narrow(1, 0, 5).narrow(2, 0, 5), alone.z, 1e-13, 1e-13));
  EXPECT_THAT(test::thrown_message([&] { EsmFoldBlock(make, "y", {.sequence = 8, .pair = 6, .sequence_width = 3}); }),
              testing::HasSubstr("head widths of ESMFold must divide its features"));
}

}  // namespace
}  // namespace colossal::models::folding_blocks_test
