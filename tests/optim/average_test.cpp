// The average of the weights beside every rule: its formula, bitwise under every sharding, and rules that it leaves as
// they are.
#include "colossal/optim/average.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "optim/trajectory.h"
#include "support/counting_store.h"
#include "support/thrown_message.h"

namespace colossal::optim::average_test {
namespace {

constexpr double kDecay = 0.9;

OptimizerConfig config_of(const std::string& name) {
  OptimizerConfig c;
  c.name = name;
  if (name == "galore") c.rank = 3;
  return c;
}

/// The values and states of one rank after some steps, and copies of the averages.
struct Stepped {
  std::vector<at::Tensor> values;
  std::map<std::string, at::Tensor> states, averages;
  std::map<std::string, at::Tensor> wanted;  ///< averages by the formula, from the values after each step
};

Stepped stepped(const OptimizerConfig& config, RankState& rank, double decay) {
  const auto optimizer = make_averaging_optimizer(config, rank.shards, {rank.parameters, rank.mesh}, decay);
  Stepped result;
  for (int64_t t = 1; t <= 4; ++t) {
    rank.set_gradients(t, 4);
    optimizer->step(t, rate_of(t), 0.25);
    const double keep = t == 1 ? 0 : std::min(decay, static_cast<double>(t) / static_cast<double>(9 + t));
    for (const memory::Shard& shard : rank.shards)
      for (const memory::Piece& piece : shard.pieces()) {
        const at::Tensor value = of_piece(shard.lease()->values, piece).clone();
        at::Tensor& average = result.wanted[piece.parameter->name];
        average = average.defined() ? average + (value - average) * (1 - keep) : value;
      }
  }
  for (const memory::Shard& shard : rank.shards) result.values.push_back(shard.lease()->values.clone());
  for (const StateTensor& t : optimizer->state()) {
    const bool is_average = t.name.starts_with("ema.");
    (is_average ? result.averages : result.states)[is_average ? t.name.substr(4) : t.name] = t.value.clone();
  }
  return result;
}

void expect_equal(const std::map<std::string, at::Tensor>& got, const std::map<std::string, at::Tensor>& want,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << what << ": " << name;
}

TEST(Average, KeepsLittleAtFirst) {  // golden values of EMAModel
  const std::map<int64_t, double> golden{{1, 0}, {2, 0.1818181818182}, {3, 0.25}, {100, 0.9174311926606}};
  for (const auto& [step, keep] : golden) EXPECT_NEAR(average_decay(0.9999, step), keep, 1e-12) << step;
  EXPECT_EQ(average_decay(0.9999, 1 << 20), 0.9999);
}

TEST(Average, FollowsValues) {  // the golden average of the values 1 + 0.1 k after step k
  nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
  parameters.add("weight", tensor::ShardSpec::whole({3}), nn::Init::ones(), false);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    std::vector<memory::Shard> shards{make_shard(parameters)};
    OptimizerConfig c = config_of("sgd");
    c.momentum = c.weight_decay = 0;
    const auto optimizer = make_averaging_optimizer(c, shards, {parameters, mesh}, 0.9999);
    for (int64_t t = 1; t <= 5; ++t) {
      shards[0].lease()->gradients.fill_(-1);
      optimizer->step(t, 0.1, 1);
    }
    const at::Tensor average = optimizer->state().back().value.clone();
    EXPECT_TRUE(at::allclose(average, at::full({3}, 1.45004995005, at::kDouble), 0, 1e-11)) << average;
  });
}

class AveragedRule : public testing::TestWithParam<std::string> {};

TEST_P(AveragedRule, KeepsItsValuesAndStatesBesideTheAverage) {
  const OptimizerConfig c = config_of(GetParam());
  for (const Layout& layout : {Layout{}, Layout{3, 1, true}, Layout{2, 2, true}})
    comm::run_ranks(layout.data * layout.tensor, [&](comm::World& world) {
      const auto offload = std::make_shared<test::CountingStore>();
      RankState without(world, layout), with(world, layout), offloaded(world, layout, offload);
      const Stepped want = stepped(c, without, 0), got = stepped(c, with, kDecay),
                    moved = stepped(c, offloaded, kDecay);
      EXPECT_TRUE(want.averages.empty());
      ASSERT_EQ(got.values.size(), want.values.size());
      for (size_t i = 0; i < want.values.size(); ++i) EXPECT_TRUE(at::equal(got.values[i], want.values[i])) << i;
      expect_equal(got.states, want.states, to_string(layout));
      expect_equal(got.averages, got.wanted, "averages under " + to_string(layout));
      expect_equal(moved.averages, got.averages, "averages of offloaded shards under " + to_string(layout));
    });
}
INSTANTIATE_TEST_SUITE_P(Average, AveragedRule, testing::ValuesIn(rule_names()),
                         [](const auto& info) { return info.param; });

TEST(Average, StaysOneUnderEverySharding) {
  std::map<std::string, at::Tensor> whole;
  for (const Layout& layout : layouts())
    comm::run_ranks(layout.data * layout.tensor, [&](comm::World& world) {
      RankState rank(world, layout);
      const auto optimizer =
          make_averaging_optimizer(config_of("adamw"), rank.shards, {rank.parameters, rank.mesh}, kDecay);
      for (int64_t t = 1; t <= 4; ++t) {
        rank.set_gradients(t, 1);
        optimizer->step(t, rate_of(t), 1);
      }
      std::map<std::string, at::Tensor> averages;
      for (const StateTensor& t : optimizer->state())
        if (t.name.starts_with("ema.")) averages[t.name.substr(4)] = t.value.clone();
      if (world.size() == 1)
        for (const auto& [name, average] : averages)
          whole[name] = average.view(rank.parameters.at(name).spec.shape).clone();
      for (const memory::Shard& shard : rank.shards)
        for (const memory::Piece& piece : shard.pieces()) {
          const std::string& name = piece.parameter->name;
          const at::Tensor buffer = at::zeros({shard.length()}, at::kDouble);
          of_piece(buffer, piece).copy_(averages.at(name));
          for_blocks(rank.mesh.coordinates(), piece, buffer, whole.at(name), [&](at::Tensor mine, at::Tensor same) {
            EXPECT_TRUE(at::equal(mine, same)) << name << " under " << to_string(layout);
          });
        }
    });
}

TEST(Average, KeepsFp32OfBf16) {
  nn::Parameters parameters({}, {at::kBFloat16, at::kCPU, 1});
  parameters.add("weight", tensor::ShardSpec::whole({64}), nn::Init::ones(), false);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    std::vector<memory::Shard> shards{make_shard(parameters)};
    OptimizerConfig c = config_of("lion");
    c.stochastic_rounding = true;
    const auto optimizer = make_averaging_optimizer(c, shards, {parameters, mesh}, 0.9999);
    const auto step = [&](int64_t number, double gradient, double rate) {
      shards[0].lease()->gradients.fill_(gradient);
      optimizer->step(number, rate, 1);
    };
    step(1, 1, 0);         // the average begins at 1
    step(1 << 20, -1, 1);  // the values become 1.9 or so: 1e-4 of the difference would round away in bf16
    const StateTensor average = optimizer->state().back();
    EXPECT_EQ(average.value.scalar_type(), at::kFloat);
    const at::Tensor value = shards[0].lease()->values.to(at::kFloat);
    EXPECT_TRUE(at::allclose(average.value.clone(), 1 + (value - 1) * 1e-4, 0, 1e-7)) << average.value.clone();
    EXPECT_TRUE(at::all(average.value.clone() > 1.00001).item<bool>());
  });
}

TEST(Average, ForwardsWhatItsRuleNeeds) {
  comm::run_ranks(1, [](comm::World& world) {
    for (const std::string& name : rule_names()) {
      RankState one(world, {}), other(world, {});
      const auto plain = make_optimizer(config_of(name), one.shards, {one.parameters, one.mesh});
      const auto averaging =
          make_averaging_optimizer(config_of(name), other.shards, {other.parameters, other.mesh}, kDecay);
      EXPECT_EQ(averaging->communicates(), plain->communicates()) << name;
      EXPECT_EQ(averaging->takes().directions, plain->takes().directions) << name;
      EXPECT_EQ(averaging->takes().shards, plain->takes().shards) << name;
      EXPECT_EQ(averaging->takes_shards_on(at::kCUDA), plain->takes_shards_on(at::kCUDA)) << name;
      int64_t elements = 0, averaged = 0;
      for (const memory::Shard& shard : other.shards)
        for (const memory::Piece& piece : shard.pieces()) elements += piece.part.size;
      for (const StateTensor& t : averaging->state())
        if (t.name.starts_with("ema.")) averaged += t.value.nbytes();
      EXPECT_EQ(averaged, 8 * elements) << name << ": one value per element, in the dtype of the values";
    }
  });
}

TEST(Average, RefusesADecayThatKeepsAll) {
  comm::run_ranks(1, [](comm::World& world) {
    RankState rank(world, {});
    EXPECT_THAT(test::thrown_message(
                    [&] { make_averaging_optimizer(config_of("sgd"), rank.shards, {rank.parameters, rank.mesh}, 1); }),
                testing::HasSubstr("must be in [0, 1): got 1"));
  });
}

}  // namespace
}  // namespace colossal::optim::average_test
