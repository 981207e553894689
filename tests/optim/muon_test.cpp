// Muon: matrices of the whole model are orthogonalized under every layout, other parameters get AdamW.
#include <cmath>
#include <mutex>

#include "colossal/optim/rules.h"
#include "optim/trajectory.h"

namespace colossal::optim::muon_test {
namespace {

OptimizerConfig config() {
  OptimizerConfig c;
  c.name = "muon";
  c.betas = {0.9, 0.8, 0.95};
  return c;
}

/// The iteration as it is written in Jordan's post, in fp64.
at::Tensor plain_newton_schulz(const at::Tensor& g) {
  if (g.size(0) > g.size(1)) return plain_newton_schulz(g.t()).t();
  at::Tensor x = g / g.norm().clamp_min(1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
  }
  return x;
}

/// Moonlight's rule: arXiv:2502.16982, equation 4 with its algorithm's Nesterov momentum.
Formula formula_with(const std::function<double(double, double)>& scale) {
  return [scale](Plain& p, const at::Tensor& g, int64_t t, double rate) {
    const auto step = static_cast<double>(t);
    at::Tensor direction;
    if (p.matrix_rows.empty()) {
      at::Tensor &m = p.of("m"), &v = p.of("v");
      m = 0.8 * m + 0.2 * g;
      v = 0.95 * v + 0.05 * g * g;
      direction = m / (1 - std::pow(0.8, step)) / ((v / (1 - std::pow(0.95, step))).sqrt() + 1e-8);
    } else {
      at::Tensor& m = p.of("m");
      m = 0.9 * m + 0.1 * g;
      std::vector<at::Tensor> parts;
      for (const at::Tensor& part : (0.9 * m + 0.1 * g).split_with_sizes(p.matrix_rows))
        parts.push_back(plain_newton_schulz(part.flatten(1)).view(part.sizes()) *
                        scale(static_cast<double>(part.size(0)), static_cast<double>(part.numel() / part.size(0))));
      direction = at::cat(parts);
    }
    p.w = p.w - rate * (direction + p.decay * 0.1 * p.w);
  };
}

double as_adamw(double rows, double columns) { return 0.2 * std::sqrt(std::max(rows, columns)); }
double spectral(double rows, double columns) { return std::sqrt(std::max(1.0, rows / columns)); }

TEST(Muon, FollowsThePaperUnderEveryLayout) {
  expect_follows(config(), formula_with(as_adamw));
  OptimizerConfig c = config();
  c.step_scale = "spectral";
  expect_follows(c, formula_with(spectral));
}

TEST(Muon, NeedsItsCollectives) { expect_needs_its_collectives(config(), formula_with(as_adamw)); }

/// Treating a fused weight as one matrix would be a different rule.
TEST(Muon, OrthogonalizesSegmentsSeparately) {
  const Formula formula = formula_with(as_adamw);
  const auto fused = plain_trajectory(
      [&](Plain& p, const at::Tensor& g, int64_t t, double rate) {
        if (p.matrix_rows.size() > 1) p.matrix_rows = {p.w.size(0)};
        formula(p, g, t, rate);
      },
      kSteps);
  EXPECT_THROW(expect_trajectory(config(), fused, {}), test::ParityError);
}

// For U diag(s) V^T the iteration returns U diag(f(f(...f(s / |s|)))) V^T with the scalar f(x) = a x + b x^3 + c x^5.
TEST(NewtonSchulz, MapsSingularValuesByItsPolynomial) {
  for (const auto& shape : {std::vector<int64_t>{6, 20}, std::vector<int64_t>{20, 6}, std::vector<int64_t>{7, 7}}) {
    const auto [u, s, v] = at::linalg_svd(gradient_of("w", shape, 1), false);
    at::Tensor values = s / s.norm();
    for (int i = 0; i < 5; ++i) values = 3.4445 * values - 4.7750 * values.pow(3) + 2.0315 * values.pow(5);
    EXPECT_GT(values.min().item<double>(), 0.6);
    EXPECT_LT(values.max().item<double>(), 1.3);
    const at::Tensor want = u.mm(at::diag(values)).mm(v);
    EXPECT_TRUE(at::allclose(newton_schulz(gradient_of("w", shape, 1)), want, 0, 1e-11)) << shape[0] << "x" << shape[1];
  }
  EXPECT_EQ(newton_schulz(at::zeros({3, 4})).abs().max().item<double>(), 0);
}

TEST(Muon, FlattensKernels) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {});
    nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
    parameters.add("kernel", tensor::ShardSpec::whole({6, 2, 3, 3}), nn::Init::normal(1), true).hidden_matrix = true;
    std::vector<memory::Shard> shards{make_shard(parameters)};
    const at::Tensor before = shards[0].lease()->values.clone(), g = gradient_of("kernel", {6, 18}, 1);
    shards[0].lease()->gradients.copy_(g.reshape({-1}));
    OptimizerConfig c = config();
    c.weight_decay = 0;
    make_optimizer(c, shards, {parameters, mesh})->step(1, 0.1, 1);
    const at::Tensor step = (before - shards[0].lease()->values).view({6, 18}) / 0.1;
    EXPECT_TRUE(at::allclose(step, as_adamw(6, 18) * plain_newton_schulz(g), 0, 1e-11));
  });
}

// Each matrix is reduced to one rank and broadcast from it. Each sends (N - 1) / N of n m values on N ranks. Matrices
// of one owner may share calls.
// AdamW sends no data.
TEST(Muon, SendsEachMatrixToOneRankAndBack) {
  const int64_t matrices = 7 * 5 + 6 * 9 + 6 * 5 + 2 * 5;
  for (const Layout& layout : {Layout{2, 1, true}, Layout{2, 1, false}, Layout{1, 2, false}, Layout{2, 2, true}}) {
    const int64_t ranks = layout.data * layout.tensor;
    double sent[2] = {0, 0};
    std::mutex mutex;
    comm::run_ranks(static_cast<int>(ranks), [&](comm::World& world) {
      RankState rank(world, layout);
      const auto optimizer = make_optimizer(config(), rank.shards, {rank.parameters, rank.mesh});
      rank.set_gradients(1, 1);
      world.traffic().reset();
      optimizer->step(1, 0.1, 1);
      const std::lock_guard lock(mutex);
      sent[0] += static_cast<double>(world.traffic().total("", "reduce").elements);
      sent[1] += static_cast<double>(world.traffic().total("", "broadcast").elements);
      EXPECT_LE(world.traffic().total().calls, 2 * 4) << to_string(layout);
    });
    for (const double elements : sent)
      EXPECT_EQ(elements, static_cast<double>(matrices * (ranks - 1))) << to_string(layout);
  }
}

TEST(Muon, KeepsOneValueForEachElementOfAMatrix) {
  comm::run_ranks(1, [](comm::World& world) {
    RankState rank(world, {});
    std::map<std::string, int64_t> numel;
    for (const StateTensor& t : make_optimizer(config(), rank.shards, {rank.parameters, rank.mesh})->state())
      numel[t.name] = t.value.numel();
    EXPECT_EQ(numel, (std::map<std::string, int64_t>{{"momentum.rows", 35},
                                                     {"momentum.whole", 54},
                                                     {"momentum.heads", 40},
                                                     {"exp_avg.columns", 60},
                                                     {"exp_avg_sq.columns", 60},
                                                     {"exp_avg.bias", 7},
                                                     {"exp_avg_sq.bias", 7},
                                                     {"exp_avg.norm", 5},
                                                     {"exp_avg_sq.norm", 5}}));
  });
}

}  // namespace
}  // namespace colossal::optim::muon_test
