// Every elementwise rule follows the formula of its paper, written plainly, and torch's own optimizers.
#include <cmath>

#include "optim/trajectory.h"
#include "support/thrown_message.h"

namespace colossal::optim::rules_test {
namespace {

OptimizerConfig config(const std::string& name) {
  OptimizerConfig c;
  c.name = name;
  c.weight_decay = 0.2;
  return c;
}

/// The moments of Adam, corrected for their bias.
std::pair<at::Tensor, at::Tensor> adam_moments(Plain& p, const at::Tensor& g, int64_t t, double beta1, double beta2) {
  at::Tensor &m = p.of("m"), &v = p.of("v");
  m = beta1 * m + (1 - beta1) * g;
  v = beta2 * v + (1 - beta2) * g * g;
  return {m / (1 - std::pow(beta1, t)), v / (1 - std::pow(beta2, t))};
}

TEST(Optimizers, AdamWFollowsItsFormula) {
  OptimizerConfig c = config("adamw");
  c.betas = {0.9, 0.99};
  expect_follows(c, [&](Plain& p, const at::Tensor& g, int64_t t, double rate) {
    const auto [m, v] = adam_moments(p, g, t, 0.9, 0.99);
    p.w = p.w - rate * (m / (v.sqrt() + c.epsilon) + p.decay * 0.2 * p.w);
  });
}

TEST(Optimizers, AdamFollowsItsFormula) {
  OptimizerConfig c = config("adam");
  c.epsilon = 1e-3;
  expect_follows(c, [&](Plain& p, const at::Tensor& g, int64_t t, double rate) {
    const auto [m, v] = adam_moments(p, g + p.decay * 0.2 * p.w, t, 0.9, 0.95);
    p.w = p.w - rate * m / (v.sqrt() + c.epsilon);
  });
}

TEST(Optimizers, SgdFollowsItsFormula) {
  for (const double momentum : {0.0, 0.8})
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      OptimizerConfig c = config("sgd");
      c.momentum = momentum;
      c.nesterov = nesterov;
      expect_follows(c, [&](Plain& p, const at::Tensor& gradient, int64_t, double rate) {
        const at::Tensor g = gradient + p.decay * 0.2 * p.w;
        at::Tensor& b = p.of("b");
        b = momentum * b + g;
        p.w = p.w - rate * (nesterov ? g + momentum * b : b);
      });
    }
}

TEST(Optimizers, LionFollowsItsFormula) {
  OptimizerConfig c = config("lion");
  c.betas = {0.9, 0.99};
  expect_follows(c, [&](Plain& p, const at::Tensor& g, int64_t, double rate) {
    at::Tensor& m = p.of("m");
    p.w = p.w - rate * ((0.9 * m + 0.1 * g).sign() + p.decay * 0.2 * p.w);
    m = 0.99 * m + 0.01 * g;
  });
}

/// One parameter of 301 elements in one shard.
struct One {
  One() : parameters({}, {at::kDouble, at::kCPU, 1}) {
    parameters.add("w", tensor::ShardSpec::whole({7, 43}), nn::Init::normal(1), true).hidden_matrix = true;
    shards.push_back(make_shard(parameters));
    theirs = shards[0].lease()->values.clone();
  }
  nn::Parameters parameters;
  std::vector<memory::Shard> shards;
  at::Tensor theirs;
};

/// Compares 100 steps of this library with 100 steps of `torch_step(values, gradient, t)`.
void expect_equals_torch(const OptimizerConfig& c,
                         const std::function<void(at::Tensor&, const at::Tensor&, int64_t)>& torch_step) {
  comm::run_ranks(1, [&](comm::World& world) {
    One one;
    comm::Mesh mesh(world, {});
    const auto optimizer = make_optimizer(c, one.shards, {one.parameters, mesh});
    for (int64_t t = 1; t <= 100; ++t) {
      one.shards[0].lease()->gradients.copy_(gradient_of("w", {301}, t));
      torch_step(one.theirs, one.shards[0].lease()->gradients, t);
      optimizer->step(t, 0.01, 1);
    }
    test::expect_within(one.shards[0].lease()->values, one.theirs, 1e-12, c.name);
  });
}

TEST(Optimizers, EqualTorchForAHundredSteps) {
  const auto zeros = [] { return at::zeros({301}, at::kDouble); };
  at::Tensor m = zeros(), v = zeros(), step = at::zeros({}, at::kFloat);
  expect_equals_torch(config("adamw"), [&](at::Tensor& w, const at::Tensor& g, int64_t t) {
    at::_fused_adamw_({w}, {g}, {m}, {v}, {}, {step.fill_(t)}, 0.01, 0.9, 0.95, 0.2, 1e-8, false, false);
  });
  m = zeros(), v = zeros();
  expect_equals_torch(config("adam"), [&](at::Tensor& w, const at::Tensor& g, int64_t t) {
    at::_fused_adam_({w}, {g}, {m}, {v}, {}, {step.fill_(t)}, 0.01, 0.9, 0.95, 0.2, 1e-8, false, false);
  });
  m = zeros();
  expect_equals_torch(config("sgd"), [&](at::Tensor& w, const at::Tensor& g, int64_t t) {
    at::_fused_sgd_({w}, {g}, {m}, 0.2, 0.9, 0.01, 0.0, false, false, t == 1);
  });
}

const char* const kAllRules[] = {"adamw",     "adam", "sgd",      "lion",   "lamb", "lars",
                                 "adafactor", "came", "adam8bit", "galore", "muon"};

/// Runs two steps on shards that `prepare` changed. Their gradients are rounded to one dtype and stored in another.
memory::Shard after_two_steps(const std::string& name, const std::function<void(memory::Shard&)>& prepare,
                              at::ScalarType gradients, at::ScalarType rounded_to) {
  std::vector<memory::Shard> result;
  comm::run_ranks(1, [&](comm::World& world) {
    One one;
    prepare(one.shards[0]);
    comm::Mesh mesh(world, {});
    OptimizerConfig c = config(name);
    if (name == "galore") c.rank = 3;
    const auto optimizer = make_optimizer(c, one.shards, {one.parameters, mesh});
    for (int64_t t = 1; t <= 2; ++t) {
      one.shards[0].lease()->gradients = gradient_of("w", {301}, t).to(rounded_to).to(gradients);
      optimizer->step(t, name == "lars" ? 10 : 0.01, 0.5);  // LARS steps are a thousandth of the rate
    }
    result = one.shards;
  });
  return result[0];
}

TEST(Optimizers, RoundValuesForNarrowModels) {
  for (const std::string name : kAllRules)
    for (const auto narrow : {at::kBFloat16, at::kHalf}) {
      at::Tensor before;
      const auto prepare = [&](memory::Shard& shard) {
        shard.lease()->values = shard.lease()->values.to(at::kFloat);
        shard.lease()->copy = at::zeros({301}, narrow);
        before = shard.lease()->values.clone();
      };
      const memory::Shard shard = after_two_steps(name, prepare, narrow, narrow);
      EXPECT_FALSE(at::equal(shard.lease()->values, before)) << name;
      EXPECT_TRUE(at::equal(shard.lease()->copy, shard.lease()->values.to(narrow))) << name;
      EXPECT_TRUE(at::equal(shard.lease()->values, after_two_steps(name, prepare, at::kFloat, narrow).lease()->values))
          << name << ": the same gradients, widened before";
    }
}

TEST(Optimizers, AcceptFp32GradientsOfNarrowModels) {
  for (const std::string name : kAllRules) {
    const auto prepare = [](memory::Shard& shard) { shard.lease()->values = shard.lease()->values.to(at::kBFloat16); };
    const at::Tensor wide = after_two_steps(name, prepare, at::kFloat, at::kBFloat16).lease()->values;
    const at::Tensor narrow = after_two_steps(name, prepare, at::kBFloat16, at::kBFloat16).lease()->values;
    EXPECT_TRUE(at::allclose(wide, narrow, 0x1p-7, 0)) << name;
    EXPECT_FALSE(at::equal(wide, One().shards[0].lease()->values.to(at::kBFloat16))) << name;
  }
}

TEST(Optimizers, RoundReplicasAlikeUnderEverySharding) {
  // 1e-3 is less than half of the spacing of bf16 numbers near 1, so rounding to nearest would change no value.
  const auto stepped = [](const Layout& layout, bool by_chance) {
    std::vector<at::Tensor> values(static_cast<size_t>(layout.data));
    comm::run_ranks(layout.data, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", layout.data)});
      nn::Parameters parameters(mesh.coordinates(), {at::kBFloat16, at::kCPU, 1});
      parameters.add("w", tensor::ShardSpec::whole({30, 40}), nn::Init::ones(), true);
      const int index = mesh.index("data");
      std::vector<nn::Parameter*> all{&parameters.at("w")};
      std::vector<memory::Shard> shards{layout.zero ? make_shard(all, parameters.options(), index, layout.data)
                                                    : make_shard(all, parameters.options(), 0, 1)};
      shards[0].lease()->gradients.fill_(1);
      OptimizerConfig c;
      c.name = "sgd";
      c.momentum = c.weight_decay = 0;
      c.stochastic_rounding = by_chance;
      const auto optimizer = make_optimizer(c, shards, {parameters, mesh});
      for (int64_t t = 1; t <= 3; ++t) optimizer->step(t, 1e-3, 1);
      values[static_cast<size_t>(index)] = shards[0].lease()->values;
    });
    return layout.zero ? at::cat(values) : values.back();
  };
  EXPECT_EQ((stepped({1, 1, false}, false) != 1).sum().item<int64_t>(), 0);
  const at::Tensor one = stepped({1, 1, false}, true);
  EXPECT_GT((one != 1).sum().item<int64_t>(), 300);
  EXPECT_TRUE(at::equal(stepped({2, 1, false}, true), one));
  EXPECT_TRUE(at::equal(stepped({3, 1, true}, true), one));
}

TEST(Optimizers, NameStatesOfThePapersSizes) {
  const std::map<std::string, std::vector<std::string>> kinds{{"adamw", {"exp_avg", "exp_avg_sq"}},
                                                              {"adam", {"exp_avg", "exp_avg_sq"}},
                                                              {"sgd", {"momentum"}},
                                                              {"lion", {"exp_avg"}},
                                                              {"lamb", {"exp_avg", "exp_avg_sq"}},
                                                              {"lars", {"momentum"}}};
  for (const auto& [name, states] : kinds)
    comm::run_ranks(1, [&, name = name, states = states](comm::World& world) {
      RankState rank(world, {});
      const auto optimizer = make_optimizer(config(name), rank.shards, {rank.parameters, rank.mesh});
      std::vector<std::string> got, want;
      for (const StateTensor& t : optimizer->state()) {
        got.push_back(t.name);
        EXPECT_EQ(t.value.numel(), t.spec.numel()) << t.name;
      }
      for (const nn::Parameter& p : rank.parameters)
        for (const std::string& kind : states) want.push_back(kind + "." + p.name);
      EXPECT_EQ(got, want) << name;
    });
}

std::string refusal(const OptimizerConfig& c) {
  return test::thrown_message([&] { check_optimizer(c); });
}

TEST(Optimizers, RefuseUnusedKeys) {
  EXPECT_EQ(refusal({}), "");
  OptimizerConfig c = config("lion");
  EXPECT_EQ(refusal(c), "");
  c.epsilon = 1e-6;
  EXPECT_EQ(refusal(c), "[optimizer] lion has no epsilon: got 1e-06; it has stochastic_rounding, betas");
  c = config("lamb");
  c.stochastic_rounding = true;
  EXPECT_EQ(refusal(c), "[optimizer] lamb has no stochastic_rounding: got true; it has epsilon, betas");
  c = config("adamw");
  c.betas = {0.9};
  EXPECT_EQ(refusal(c), "[optimizer] betas must have 2 values for adamw: got 1");
  c = config("adamw");
  c.name = "adamax";
  EXPECT_EQ(refusal(c),
            "[optimizer] unknown optimizer adamax; use one of adamw, adam, sgd, lion, lamb, lars, adafactor, came, "
            "adam8bit, galore, muon");
  c = config("adamw");
  c.schedule.name = "linear";
  EXPECT_EQ(refusal(c), "") << "every rule has a schedule";
}

TEST(Optimizers, RefuseMismatchedShards) {
  comm::run_ranks(1, [](comm::World& world) {
    One one;
    comm::Mesh mesh(world, {});
    OptimizerConfig c = config("sgd");
    c.stochastic_rounding = true;
    const auto message = [&] {
      return test::thrown_message([&] { make_optimizer(c, one.shards, {one.parameters, mesh}); });
    };
    EXPECT_EQ(
        message(),
        "[optimizer] stochastic_rounding needs bf16 parameters without fp32 master weights: got Double; leave it out");
    c = config("sgd");
    c.momentum = 0;
    c.nesterov = true;
    EXPECT_EQ(message(), "[optimizer] nesterov needs a momentum above 0: got 0; set momentum = 0.9");
  });
}

}  // namespace
}  // namespace colossal::optim::rules_test
