// LAMB and LARS: the goldens of their papers' formulas, the same step under every layout, and steps that do not depend
// on the gradient's scale.
#include <cmath>

#include "optim/trajectory.h"

namespace colossal::optim::layer_wise_test {
namespace {

OptimizerConfig lamb() {
  OptimizerConfig c;
  c.name = "lamb";
  c.betas = {0.9, 0.999};
  c.epsilon = 1e-6;
  c.weight_decay = 0.01;
  return c;
}

OptimizerConfig lars() {
  OptimizerConfig c;
  c.name = "lars";
  c.weight_decay = 5e-4;
  return c;
}

double length(const at::Tensor& x) { return x.norm().item<double>(); }
double or_one(double ratio) { return std::isfinite(ratio) && ratio > 0 ? ratio : 1; }

void lamb_formula(Plain& p, const at::Tensor& g, int64_t t, double rate) {
  at::Tensor &m = p.of("m"), &v = p.of("v");
  m = 0.9 * m + 0.1 * g;
  v = 0.999 * v + 0.001 * g * g;
  const at::Tensor r = m / (1 - std::pow(0.9, t)) / ((v / (1 - std::pow(0.999, t))).sqrt() + 1e-6);
  const at::Tensor u = r + p.decay * 0.01 * p.w;
  p.w = p.w - rate * or_one(length(p.w) / length(u)) * u;
}

/// A formula that folds the bias correction into the rate, as some implementations do; it differs from the paper's.
void lamb_with_folded_correction(Plain& p, const at::Tensor& g, int64_t t, double rate) {
  at::Tensor &m = p.of("m"), &v = p.of("v");
  m = 0.9 * m + 0.1 * g;
  v = 0.999 * v + 0.001 * g * g;
  const at::Tensor u = m / (v.sqrt() + 1e-6) + p.decay * 0.01 * p.w;
  p.w = p.w - rate * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t)) * length(p.w) / length(u) * u;
}

void lars_formula(Plain& p, const at::Tensor& g, int64_t, double rate) {
  const double decay = p.decay * 5e-4,
               local = p.w.dim() > 1 ? 1e-3 * length(p.w) / (length(g) + decay * length(p.w)) : 1;
  at::Tensor& b = p.of("b");
  b = 0.9 * b + rate * local * (g + decay * p.w);
  p.w = p.w - b;
}

/// Returns w after one step from (3, 4) with gradient g.
at::Tensor one_step(const OptimizerConfig& c, const at::Tensor& g, double rate,
                    const at::Tensor& w = at::tensor({3.0, 4.0}, at::kDouble)) {
  at::Tensor result;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
    parameters.add("w", tensor::ShardSpec::whole({1, w.numel()}), nn::Init::zeros(), true);
    std::vector<memory::Shard> shards{make_shard(parameters)};
    shards[0].lease()->values.copy_(w);
    shards[0].lease()->gradients.copy_(g);
    make_optimizer(c, shards, {parameters, mesh})->step(1, rate, 1);
    result = shards[0].lease()->values;
  });
  return result;
}

TEST(Lamb, GivesTheGoldenStep) {
  const at::Tensor w = at::tensor({3.0, 4.0}, at::kDouble);
  const at::Tensor step = (w - one_step(lamb(), at::tensor({0.6, 0.8}, at::kDouble), 0.5)) / 0.5;
  EXPECT_NEAR(step[0].item<double>(), 3.5184122370, 1e-10);
  EXPECT_NEAR(step[1].item<double>(), 3.5525730577, 1e-10);
}

TEST(Lars, GivesTheGoldenRate) {
  const at::Tensor w = at::tensor({3.0, 4.0}, at::kDouble), g = at::tensor({0.6, 0.8}, at::kDouble);
  const at::Tensor step = w - one_step(lars(), g, 1);
  EXPECT_TRUE(at::allclose(step, 0.004987531172069826 * (g + 5e-4 * w), 1e-12, 1e-15)) << step;
}

TEST(Lamb, FollowsThePaperUnderEveryLayout) { expect_follows(lamb(), lamb_formula); }
TEST(Lars, FollowsThePaperUnderEveryLayout) { expect_follows(lars(), lars_formula); }

TEST(Lamb, DiffersFromCorrectionInTheRate) {
  const auto other = plain_trajectory(lamb_with_folded_correction, kSteps);
  EXPECT_THROW(expect_trajectory(lamb(), other, {}), test::ParityError);
}

TEST(LayerWise, NeedsItsCollectives) {
  expect_needs_its_collectives(lamb(), lamb_formula);
  expect_needs_its_collectives(lars(), lars_formula);
}

TEST(LayerWise, IgnoresTheScaleOfTheGradient) {
  const at::Tensor g = at::tensor({0.6, -0.8}, at::kDouble);
  for (OptimizerConfig c : {lamb(), lars()}) {
    c.weight_decay = 0;
    if (c.name == "lamb") c.epsilon = 1e-12;
    const at::Tensor want = one_step(c, g, 0.1);
    EXPECT_FALSE(at::allclose(want, at::tensor({3.0, 4.0}, at::kDouble), 1e-6, 0)) << c.name;
    for (const double factor : {1e-3, 1e3})
      EXPECT_TRUE(at::allclose(one_step(c, g * factor, 0.1), want, 1e-8, 0)) << c.name;
  }
}

TEST(LayerWise, UsesTrustOneIfANormIsZero) {
  const at::Tensor zero = at::zeros({2}, at::kDouble), g = at::tensor({0.6, 0.8}, at::kDouble),
                   w = at::tensor({3.0, 4.0}, at::kDouble);
  EXPECT_TRUE(at::allclose(one_step(lamb(), g, 0.1, zero), at::tensor({-0.1, -0.1}, at::kDouble), 1e-5, 0));
  EXPECT_TRUE(at::allclose(one_step(lars(), g, 0.1, zero), -0.1 * g, 1e-12, 0));
  EXPECT_TRUE(at::allclose(one_step(lars(), zero, 0.1, w), w - 0.1 * 5e-4 * w, 1e-12, 0));
}

TEST(LayerWise, SendsTwoNumbersPerTensorInOneMessage) {
  for (const OptimizerConfig& c : {lamb(), lars()})
    comm::run_ranks(2, [&](comm::World& world) {
      RankState rank(world, {2, 1, true});
      const auto optimizer = make_optimizer(c, rank.shards, {rank.parameters, rank.mesh});
      rank.set_gradients(1, 1);
      world.traffic().reset();
      optimizer->step(1, 0.1, 1);
      EXPECT_EQ(world.traffic().total().calls, 1) << c.name;
      // traffic of 2 ranks: as many bytes as the message has
      EXPECT_EQ(world.traffic().total("", "all_reduce").elements, 2 * 6) << c.name;
      EXPECT_EQ(world.traffic().total().bytes, 2 * 6 * 8) << c.name;
    });
}

}  // namespace
}  // namespace colossal::optim::layer_wise_test
