// Adapters that are merged into weights, with the golden values of peft.
#include "colossal/run/adapter_weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/comm/run_ranks.h"
#include "colossal/run/low_rank_keys.h"

namespace colossal::run::adapter_weights_test {
namespace {

constexpr double kTolerance = 1e-12;  // all digits that the golden values have

at::Tensor golden_w() {
  const at::Tensor k = at::arange(20, at::kDouble).view({4, 5});
  return at::sin(0.3 * k + 0.1);
}

AdapterLayer golden_layer(double scale) {
  return {.module = {.name = "w", .weight = "w.weight", .part = {.name = "", .first = 0, .count = 4}, .in = 5},
          .a = 0.1 * at::cos(0.5 * at::arange(10, at::kDouble)).view({2, 5}),
          .b = 0.2 * at::sin(0.7 * at::arange(8, at::kDouble) + 0.2).view({4, 2}),
          .scale = scale};
}

/// The golden layer twice, as two experts, of which the second has a negative B.
AdapterLayer golden_stack(double scale) {
  AdapterLayer layer = golden_layer(scale);
  layer.module.experts = 2;
  layer.a = at::stack({layer.a, layer.a});
  layer.b = at::stack({layer.b, -layer.b});
  return layer;
}

/// Merges adapters of two experts into a stack that has the golden weight twice, a half of it on a rank if `halved`.
at::Tensor merged_stack(const AdapterLayer& layer, bool halved) {
  at::Tensor value = at::stack({golden_w(), golden_w()});
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    const nn::Parameter& weight = parameters.add("w.weight", tensor::ShardSpec::whole({2, 4, 5}), {}, true);
    std::vector<checkpoint::NamedTensor> tensors;
    const at::Tensor flat = value.view(-1);
    const std::vector<int64_t> cuts = halved ? std::vector<int64_t>{0, 7, 23, 40} : std::vector<int64_t>{0, 40};
    for (size_t i = 0; i + 1 < cuts.size(); ++i)  // cuts within rows
      tensors.push_back({weight.name, flat.narrow(0, cuts[i], cuts[i + 1] - cuts[i]), weight.spec,
                         tensor::FlatPart{.first = cuts[i], .size = cuts[i + 1] - cuts[i]}});
    merge_adapters({.layers = {layer}}, parameters, tensors, mesh);
  });
  return value;
}

/// Merges a layer into the golden weight, whose rows a rank has in two halves if `halved`.
at::Tensor merged(const AdapterLayer& layer, at::ScalarType dtype = at::kDouble, bool halved = false) {
  at::Tensor value = golden_w().to(dtype);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = dtype});
    const nn::Parameter& weight = parameters.add("w.weight", tensor::ShardSpec::whole({4, 5}), {}, true);
    std::vector<checkpoint::NamedTensor> tensors;
    if (halved) {
      const at::Tensor flat = value.view(-1);
      for (const int64_t first : {0, 7})  // a cut within a row
        tensors.push_back({weight.name, flat.narrow(0, first, first == 0 ? 7 : 13), weight.spec,
                           tensor::FlatPart{.first = first, .size = first == 0 ? 7 : 13}});
    } else {
      tensors.push_back({weight.name, value, weight.spec});
    }
    merge_adapters({.layers = {layer}}, parameters, tensors, mesh);
  });
  return value;
}

double at_index(const at::Tensor& value) { return value[1][2].item<double>(); }

TEST(AdapterMerging, GivesTheValuesOfPeft) {  // G56
  EXPECT_NEAR(at_index(merged(golden_layer(3 / 2.))), 0.8037489425171, kTolerance);
  EXPECT_NEAR(at_index(merged(golden_layer(3 / std::sqrt(2.)))), 0.8017824796588, kTolerance);
  AdapterLayer dora = golden_layer(3 / 2.);
  dora.magnitude = at::tensor({1., 1.1, 1.2, 1.3}, at::kDouble);
  EXPECT_NEAR(at_index(merged(dora)), 0.5089946416763, kTolerance);
  dora.magnitude = dora.magnitude - golden_w().square().sum(1).sqrt();
  dora.is_change = true;
  EXPECT_NEAR(at_index(merged(dora)), 0.5089946416763, kTolerance);
}

TEST(AdapterMerging, DoesNotDependOnHowRanksHoldTheWeight) {
  AdapterLayer dora = golden_layer(3 / 2.);
  EXPECT_TRUE(at::equal(merged(dora, at::kDouble, true), merged(dora)));
  dora.magnitude = at::tensor({1., 1.1, 1.2, 1.3}, at::kDouble);
  EXPECT_TRUE(at::allclose(merged(dora, at::kDouble, true), merged(dora), 1e-15, 0));
}

TEST(AdapterMerging, GivesEachExpertItsOwn) {
  const AdapterLayer layer = golden_stack(3 / 2.);
  const at::Tensor whole = merged_stack(layer, false), change = 1.5 * layer.b[0].mm(layer.a[0]);
  EXPECT_NEAR(at_index(whole[0]), 0.8037489425171, kTolerance);
  EXPECT_TRUE(at::allclose(whole[1], golden_w() - change, 0, kTolerance));
  EXPECT_TRUE(at::equal(merged_stack(layer, true), whole));
}

TEST(AdapterMerging, RoundsOnceToTheDtypeOfTheWeight) {
  const AdapterLayer layer = golden_layer(3 / 2.);
  const at::Tensor w = golden_w().to(at::kBFloat16);
  const at::Tensor want = (w.to(at::kDouble) + 1.5 * layer.b.mm(layer.a)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(merged(layer, at::kBFloat16), want));
}

TEST(AdapterMerging, LeavesRowsOfZeros) {
  AdapterLayer dora = golden_layer(1);
  dora.b.zero_();
  dora.magnitude = at::zeros({4}, at::kDouble);
  dora.is_change = true;
  EXPECT_TRUE(at::equal(merged(dora), golden_w()));
}

TEST(LowRankKeys, GiveRanksAndAlphasOfModules) {
  const LowRankKeys keys{.scale = "root", .rank = 4, .alpha = 6, .ranks = {"v_proj=9", "*.1.*=2"}, .alphas = {"q=1.5"}};
  EXPECT_EQ(keys.rank_of("layers.1.v_proj"), 9);
  EXPECT_EQ(keys.rank_of("layers.1.q"), 2);
  EXPECT_EQ(keys.rank_of("layers.0.q"), 4);
  EXPECT_EQ(keys.alpha_of("layers.0.q"), 1.5);
  EXPECT_DOUBLE_EQ(keys.factor_of("layers.1.v_proj"), 2);
  for (const std::string element : {"v_proj", "v_proj=", "=2", "v_proj=x", "v_proj=2x", "v_proj=1.5", "v_proj=0"})
    EXPECT_ANY_THROW((LowRankKeys{.ranks = {element}}).rank_of("v_proj")) << element;
}

}  // namespace
}  // namespace colossal::run::adapter_weights_test
