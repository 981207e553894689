// Rules that keep fewer than two values per element: Adafactor, CAME, GaLore, 8-bit Adam.
#include <cmath>
#include <limits>

#include "optim/trajectory.h"

namespace colossal::optim::memory_saving_test {
namespace {

OptimizerConfig config(const std::string& name) {
  OptimizerConfig c;
  c.name = name;
  return c;
}

double rms(const at::Tensor& x) { return std::sqrt(x.square().mean().item<double>()); }

/// The moment of x^2 + epsilon; for matrices, its approximation by rows and columns.
at::Tensor factored_moment(Plain& p, const std::string& name, const at::Tensor& x, double decay, double epsilon) {
  const at::Tensor squares = x.square() + epsilon;
  if (x.dim() != 2) {
    at::Tensor& v = p.of(name);
    v = decay * v + (1 - decay) * squares;
    return v;
  }
  at::Tensor &r = p.state[name + " rows"], &c = p.state[name + " columns"];
  if (!r.defined()) r = at::zeros({x.size(0)}, at::kDouble), c = at::zeros({x.size(1)}, at::kDouble);
  r = decay * r + (1 - decay) * squares.mean(1);
  c = decay * c + (1 - decay) * squares.mean(0);
  return at::outer(r, c) / r.mean();
}

void adafactor_formula(Plain& p, const at::Tensor& g, int64_t t, double rate) {
  const at::Tensor v = factored_moment(p, "v", g, 1 - std::pow(static_cast<double>(t), -0.8), 1e-30), u = g / v.sqrt();
  const at::Tensor clipped = u / std::max(1.0, rms(u));
  p.w = p.w - rate * std::max(1e-3, rms(p.w)) * clipped - p.decay * rate * 0.1 * p.w;
}

void came_formula(Plain& p, const at::Tensor& g, int64_t, double rate) {
  const at::Tensor u = g / factored_moment(p, "v", g, 0.999, 1e-30).sqrt(), clipped = u / std::max(1.0, rms(u));
  at::Tensor& m = p.of("m");
  m = 0.9 * m + 0.1 * clipped;
  at::Tensor step = m;
  if (g.dim() == 2) step = m / factored_moment(p, "s", clipped - m, 0.9999, 1e-16).sqrt();
  p.w = p.w - rate * (step + p.decay * 0.1 * p.w);
}

at::Tensor adam_direction(Plain& p, const at::Tensor& g, int64_t t) {
  at::Tensor &m = p.state["m"], &v = p.state["v"];
  if (!m.defined()) m = at::zeros_like(g), v = at::zeros_like(g);
  m = 0.9 * m + 0.1 * g;
  v = 0.95 * v + 0.05 * g * g;
  return m / (1 - std::pow(0.9, t)) / ((v / (1 - std::pow(0.95, t))).sqrt() + 1e-8);
}

/// Returns each column with the sign that makes its largest component positive. If several are equal except for
/// rounding, the first one counts.
at::Tensor with_positive_largest(const at::Tensor& columns) {
  at::Tensor signed_columns = columns.clone();
  for (int64_t j = 0; j < columns.size(1); ++j) {
    const at::Tensor column = columns.select(1, j);
    const double largest = column.abs().max().item<double>();
    int64_t first = 0;
    while (std::abs(column[first].item<double>()) < 0.999 * largest) ++first;
    if (column[first].item<double>() < 0) signed_columns.select(1, j).neg_();
  }
  return signed_columns;
}

void galore_formula(Plain& p, const at::Tensor& g, int64_t t, double rate) {
  const double decay = p.decay * 0.1;
  if (g.dim() != 2 || std::min(g.size(0), g.size(1)) <= 3) {
    p.w = p.w - rate * (adam_direction(p, g, t) + decay * p.w);
    return;
  }
  const bool left = g.size(0) <= g.size(1);
  if ((t - 1) % 7 == 0) {
    // The formula uses units of the stored gradient (trajectory.h), so that results are equal to the last bit.
    const at::Tensor stored = 4 * g, square = left ? stored.mm(stored.t()) : stored.t().mm(stored);
    p.state["p"] =
        with_positive_largest(std::get<1>(at::linalg_eigh(square)).narrow(1, square.size(0) - 3, 3).contiguous());
  }
  const at::Tensor& projection = p.state["p"];
  const at::Tensor n = adam_direction(p, left ? projection.t().mm(g) : g.mm(projection), t);
  p.w = p.w - rate * (0.5 * (left ? projection.mm(n) : n.mm(projection.t())) + decay * p.w);
}

OptimizerConfig galore() {
  OptimizerConfig c = config("galore");
  c.rank = 3;
  c.update_every = 7;
  c.projection_scale = 0.5;
  return c;
}

TEST(Adafactor, FollowsThePaperUnderEveryLayout) { expect_follows(config("adafactor"), adafactor_formula); }
TEST(Came, FollowsThePaperUnderEveryLayout) { expect_follows(config("came"), came_formula); }
TEST(Galore, FollowsThePaperUnderEveryLayout) { expect_follows(galore(), galore_formula); }

TEST(MemorySaving, NeedsItsCollectives) {
  expect_needs_its_collectives(config("adafactor"), adafactor_formula);
  expect_needs_its_collectives(config("came"), came_formula);
  expect_needs_its_collectives(galore(), galore_formula);
}

TEST(Galore, ProjectsOntoTheLeadingSingularVectors) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {});
    for (const auto& shape : {std::vector<int64_t>{6, 20}, std::vector<int64_t>{20, 6}}) {
      nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
      parameters.add("w", tensor::ShardSpec::whole(shape), nn::Init::normal(1), true);
      std::vector<memory::Shard> shards{make_shard(parameters)};
      shards[0].lease()->gradients.copy_(gradient_of("w", shape, 1).view({-1}));
      const auto optimizer = make_optimizer(galore(), shards, {parameters, mesh});
      optimizer->step(1, 0.1, 1);
      const at::Tensor g = gradient_of("w", shape, 1), p = optimizer->state()[0].value.clone();
      const auto [u, s, v] = at::linalg_svd(g, false);
      const at::Tensor leading = shape[0] < shape[1] ? u.narrow(1, 0, 3) : v.narrow(0, 0, 3).t();
      EXPECT_TRUE(at::allclose(p.mm(p.t()), leading.mm(leading.t()), 1e-9, 1e-11));
    }
  });
}

// Layouts sum gradients in different orders. A difference in rounding must not change the sign of a vector. The first
// two components of the leading vector are equal except for rounding.
TEST(Galore, FixesSignsOfVectorsDespiteRounding) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {});
    for (const int64_t larger : {0, 1})
      for (const double sign : {1.0, -1.0}) {
        nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
        parameters.add("w", tensor::ShardSpec::whole({6, 20}), nn::Init::normal(1), true);
        std::vector<memory::Shard> shards{make_shard(parameters)};
        at::Tensor left = at::full({6}, 0.1, at::kDouble);
        left[0] = 0.5, left[1] = -0.5;
        left[larger] *= 1 + 1e-12;
        const at::Tensor g = gradient_of("w", {6, 20}, 1) * 1e-6 + sign * at::outer(left, at::ones({20}, at::kDouble));
        shards[0].lease()->gradients.copy_(g.view({-1}));
        const auto optimizer = make_optimizer(galore(), shards, {parameters, mesh});
        optimizer->step(1, 0.1, 1);
        const at::Tensor p = optimizer->state()[0].value.clone();
        EXPECT_TRUE(at::equal(p, with_positive_largest(p))) << larger << sign;
        EXPECT_GT(p[0][2].item<double>(), 0) << larger << sign;  // eigenvalues ascend: the last is the leading vector
      }
  });
}

/// Returns the number of values in the states of a model with these shapes.
int64_t state_numel(const OptimizerConfig& c, const std::vector<std::vector<int64_t>>& shapes) {
  int64_t total = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    nn::Parameters parameters({}, {});
    for (size_t i = 0; i < shapes.size(); ++i)
      parameters.add(concat("p", i), tensor::ShardSpec::whole(shapes[i]), nn::Init::ones(), true);
    std::vector<memory::Shard> shards{make_shard(parameters)};
    for (const StateTensor& t : make_optimizer(c, shards, {parameters, mesh})->state()) total += t.value.numel();
  });
  return total;
}

TEST(MemorySaving, KeepsStatesOfThePapersSizes) {
  EXPECT_EQ(state_numel(config("adafactor"), {{30, 50}, {7}}), 30 + 50 + 7);
  EXPECT_EQ(state_numel(config("came"), {{30, 50}, {7}}), 30 * 50 + 2 * (30 + 50) + 2 * 7);
  EXPECT_EQ(state_numel(galore(), {{30, 50}, {50, 30}, {7}}), 2 * (3 * 30 + 2 * 3 * 50) + 2 * 7);
}

/// A model of one matrix that is trained alone, with values of dtype `type`.
struct Model {
  explicit Model(comm::World& world, const OptimizerConfig& c, at::ScalarType type = at::kFloat)
      : mesh(world, {}), parameters({}, {type, at::kCPU, 1}) {
    parameters.add("w", tensor::ShardSpec::whole({40, 33}), nn::Init::normal(1), true);
    parameters.add("b", tensor::ShardSpec::whole({77}), nn::Init::normal(1), false);
    shards.push_back(make_shard(parameters));
    optimizer = make_optimizer(c, shards, {parameters, mesh});
  }
  void step(int64_t t) {
    for (const memory::Piece& piece : shards[0].pieces())
      of_piece(shards[0].lease()->gradients, piece)
          .copy_(gradient_of(piece.parameter->name, piece.parameter->spec.shape, t).view({-1}));
    optimizer->step(t, 0.01, 1);
  }
  comm::Mesh mesh;
  nn::Parameters parameters;
  std::vector<memory::Shard> shards;
  std::unique_ptr<Optimizer> optimizer;
};

TEST(MemorySaving, ResumesBitwise) {
  for (const OptimizerConfig& c :
       {config("adafactor"), config("came"), galore(), config("adam8bit"), config("adamw"), config("lars")})
    comm::run_ranks(1, [&](comm::World& world) {
      Model whole(world, c), resumed(world, c);
      for (int64_t t = 1; t <= 4; ++t) whole.step(t);
      // The test fills values and states in place, as a checkpoint does.
      resumed.shards[0].lease()->values.copy_(whole.shards[0].lease()->values);
      auto state = resumed.optimizer->state();
      const auto saved = whole.optimizer->state();
      ASSERT_EQ(state.size(), saved.size());
      for (size_t i = 0; i < state.size(); ++i) {
        EXPECT_EQ(state[i].name, saved[i].name);
        state[i].value.write().value.copy_(saved[i].value.clone());
      }
      for (int64_t t = 5; t <= 12; ++t) {
        whole.step(t);
        resumed.step(t);
      }
      EXPECT_TRUE(at::equal(whole.shards[0].lease()->values, resumed.shards[0].lease()->values)) << c.name;
    });
}

TEST(Adam8bit, ApproximatesAdamW) {
  comm::run_ranks(1, [](comm::World& world) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      Model exact(world, config("adamw"), type), coded(world, config("adam8bit"), type);
      const at::Tensor start = exact.shards[0].lease()->values.clone();
      for (int64_t t = 1; t <= 50; ++t) {
        exact.step(t);
        coded.step(t);
      }
      const double moved = (exact.shards[0].lease()->values - start).norm().item<double>();
      const double off = (exact.shards[0].lease()->values - coded.shards[0].lease()->values).norm().item<double>();
      EXPECT_LT(off, 0.05 * moved);
      EXPECT_GT(off, 0);
    }
  });
}

TEST(Adam8bit, StepsWindowsOfALargeShard) {
  // The shard has more elements than are decoded at a time. The values of the first ones equal a small shard's.
  const auto stepped = [](int64_t rows) {
    at::Tensor values;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {});
      nn::Parameters parameters({}, {});
      parameters.add("w", tensor::ShardSpec::whole({rows, 1024}), nn::Init::ones(), true);
      parameters.add("b", tensor::ShardSpec::whole({5}), nn::Init::ones(), false);
      std::vector<memory::Shard> shards{make_shard(parameters)};
      const auto optimizer = make_optimizer(config("adam8bit"), shards, {parameters, mesh});
      for (int64_t t = 1; t <= 3; ++t) {
        shards[0].lease()->gradients.copy_(
            gradient_of("w", {1024}, t).repeat({rows + 1}).narrow(0, 0, shards[0].lease()->values.numel()));
        optimizer->step(t, 0.1, 1);
      }
      values = shards[0].lease()->values.clone();
    });
    return values;
  };
  const at::Tensor small = stepped(1), large = stepped(300);
  EXPECT_TRUE(
      at::equal(large.narrow(0, 0, 300 * 1024).view({300, 1024}), small.narrow(0, 0, 1024).expand({300, 1024})));
  EXPECT_TRUE(at::equal(large.narrow(0, 300 * 1024, 5), small.narrow(0, 1024, 5)));
}

}  // namespace
}  // namespace colossal::optim::memory_saving_test
