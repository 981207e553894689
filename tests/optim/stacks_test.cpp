// Experts of a stack are matrices of their own: every rule updates a stack as it updates separate matrices, under every
// sharding.
#include <gmock/gmock.h>

#include <cmath>

#include "optim/trajectory.h"

namespace colossal::optim::stacks_test {
namespace {

constexpr int64_t kExperts = 5, kStackSteps = 10;

/// A parameter of the experts.
struct Stack {
  std::string name;
  std::vector<int64_t> shape;             ///< shape of one expert's tensor
  std::vector<tensor::Segment> segments;  ///< segments of its rows
  std::vector<int64_t> stacked() const {
    std::vector<int64_t> all = shape;
    all.insert(all.begin(), kExperts);
    return all;
  }
};

std::vector<Stack> stacks() {
  return {{"up", {6, 4}, {{6}}}, {"gate_up", {6, 4}, {{3}, {3}}}, {"down", {4, 7}, {{4}}}, {"bias", {6}, {{6}}}};
}

struct Sharding {
  int data = 1, expert = 1, tensor = 1;
  bool zero = false;   ///< replicas shard the states
  bool split = false;  ///< ranks of "tensor" split the rows of each expert; otherwise they hold different experts
  int ranks() const { return data * expert * tensor; }
};

std::string to_string(const Sharding& s) {
  return concat("data ", s.data, ", expert ", s.expert, ", tensor ", s.tensor, s.zero ? ", zero" : "",
                s.split ? ", split" : "");
}

/// Five experts never divide evenly, so there are padding slices; on four ranks one rank holds nothing else. ZeRO cuts
/// slices in the middle of a row.
std::vector<Sharding> shardings() {
  return {{},
          {.expert = 2},
          {.data = 2, .zero = true},
          {.data = 3, .expert = 2, .zero = true},
          {.data = 2, .expert = 2},
          {.expert = 2, .tensor = 2},
          {.expert = 2, .tensor = 2, .split = true},
          {.data = 2, .expert = 1, .tensor = 2, .zero = true, .split = true}};
}

void add(nn::Parameters& parameters, const std::string& name, const tensor::ShardSpec& spec, const Stack& stack,
         bool is_stack) {
  const bool is_matrix = stack.shape.size() > 1;
  nn::Parameter& p = parameters.add(name, spec, nn::Init::normal(1), is_matrix);
  p.hidden_matrix = is_matrix;
  p.is_stack = is_stack;
  if (stack.name == "down") p.rate = 0.5, p.decay = 2;
}

void add_dense(nn::Parameters& parameters) {
  parameters.add("dense", tensor::ShardSpec::whole({6, 4}), nn::Init::normal(1), true).hidden_matrix = true;
}

void declare_stacks(nn::Parameters& parameters, bool split, bool is_stack = true) {
  for (const Stack& stack : stacks()) {
    std::vector<std::string> axes{"expert"};
    if (!split) axes.emplace_back("tensor");
    tensor::ShardSpec spec = tensor::ShardSpec::split(stack.stacked(), 0, axes);
    spec.splits[1].segments = stack.segments;
    if (split) spec.splits[1].axes = {"tensor"};
    add(parameters, stack.name, spec, stack, is_stack);
  }
  add_dense(parameters);
}

/// Declares one parameter for each expert, with the values that a stack starts from.
void declare_separate(nn::Parameters& parameters) {
  nn::Parameters stacked({}, parameters.options());
  declare_stacks(stacked, false);
  for (const Stack& stack : stacks())
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string name = concat(stack.name, ".", e);
      add(parameters, name, tensor::ShardSpec::split(stack.shape, 0, {}, stack.segments), stack, false);
      parameters.at(name).value.detach().copy_(stacked.at(stack.name).value.detach().select(0, e));
    }
  add_dense(parameters);
}

const nn::Parameters::Options kOptions{at::kDouble, at::kCPU, 1};

using Tensors = std::map<std::string, at::Tensor>;

/// Returns the gradients of a step by name: of the stacks, of the dense matrix and of the separate matrices.
Tensors gradients_at(int64_t t) {
  Tensors all{{"dense", gradient_of("dense", {6, 4}, t)}};
  for (const Stack& stack : stacks()) {
    all[stack.name] = gradient_of(stack.name, stack.stacked(), t);
    for (int64_t e = 0; e < kExperts; ++e) all[concat(stack.name, ".", e)] = all[stack.name].select(0, e);
  }
  return all;
}

void train(Optimizer& optimizer, std::vector<memory::Shard>& shards, const tensor::MeshCoordinates& coordinates) {
  for (int64_t t = 1; t <= kStackSteps; ++t) {
    const Tensors gradients = gradients_at(t);
    for (memory::Shard& shard : shards)
      for (const memory::Piece& piece : shard.pieces())
        for_blocks(coordinates, piece, shard.lease()->gradients, gradients.at(piece.parameter->name) * 4,
                   [](at::Tensor mine, const at::Tensor& whole) { mine.copy_(whole); });
    optimizer.step(t, rate_of(t), 0.25);
  }
}

/// Adds the states to `states`; those of pieces as flat tensors.
void read_states(Optimizer& optimizer, Tensors& states) {
  for (const StateTensor& state : optimizer.state()) states[state.name] = state.value.clone();
}

/// Trains separate matrices on one rank. Returns the values of the experts, stacked, and of the dense matrix.
Tensors separately_trained(const OptimizerConfig& config, Tensors* states = nullptr) {
  Tensors values;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    nn::Parameters parameters({}, kOptions);
    declare_separate(parameters);
    std::vector<memory::Shard> shards{make_shard(parameters)};
    const auto optimizer = make_optimizer(config, shards, {parameters, mesh});
    train(*optimizer, shards, mesh.coordinates());
    if (states) read_states(*optimizer, *states);
    const at::Tensor flat = shards[0].lease()->values.clone();
    Tensors single;
    for (const memory::Piece& piece : shards[0].pieces())
      single[piece.parameter->name] = of_piece(flat, piece).view(piece.parameter->spec.shape);
    values["dense"] = single.at("dense");
    for (const Stack& stack : stacks()) {
      std::vector<at::Tensor> slices;
      for (int64_t e = 0; e < kExperts; ++e) slices.push_back(single.at(concat(stack.name, ".", e)));
      values[stack.name] = at::stack(slices);
    }
  });
  return values;
}

/// A bound of the rounding after all steps. A sum has up to as many terms as a matrix has elements. The iterations of
/// Muon, the rule that amplifies rounding most, multiply small singular values by 3.4445 each.
double limit_of(const at::Tensor& want) {
  const double largest = std::max(1.0, want.abs().max().item<double>());
  return kStackSteps * std::pow(3.4445, 5) * test::tolerance(at::full({1}, largest, at::kDouble), 28);
}

/// Makes one shard of the stacks and one of the dense matrix, whose replicas are more ranks.
std::vector<memory::Shard> shards_of(nn::Parameters& parameters, const comm::Mesh& mesh, bool zero) {
  const tensor::MeshCoordinates& coordinates = mesh.coordinates();
  const int index = coordinates.index("data"), count = coordinates.size("data");
  std::vector<nn::Parameter*> of_experts;
  for (const Stack& stack : stacks()) of_experts.push_back(&parameters.at(stack.name));
  const auto make = [&](const std::vector<nn::Parameter*>& chunk, bool counts) {
    return zero ? make_shard(chunk, kOptions, index, count, counts)
                : make_shard(chunk, kOptions, 0, 1, counts && index == 0);
  };
  return {make(of_experts, true), make({&parameters.at("dense")}, coordinates.index("expert") == 0)};
}

/// Trains stacks. Throws test::ParityError unless they equal `want`, and fails unless padding stays zero.
void expect_trains_to(const OptimizerConfig& config, const Tensors& want, const Sharding& sharding,
                      bool is_stack = true, const comm::RankOptions& options = {}) {
  comm::run_ranks(
      sharding.ranks(),
      [&](comm::World& world) {
        comm::Mesh mesh(world, {comm::Mesh::batch("data", sharding.data),
                                comm::Mesh::batch("expert", sharding.expert),
                                {"tensor", sharding.tensor}});
        nn::Parameters parameters(mesh.coordinates(), kOptions);
        declare_stacks(parameters, sharding.split, is_stack);
        std::vector<memory::Shard> shards = shards_of(parameters, mesh, sharding.zero);
        const auto optimizer = make_optimizer(config, shards, {parameters, mesh});
        train(*optimizer, shards, mesh.coordinates());
        for (memory::Shard& shard : shards) {
          const at::Tensor values = shard.lease()->values.clone();
          for (const memory::Piece& piece : shard.pieces())
            for_blocks(mesh.coordinates(), piece, values, want.at(piece.parameter->name),
                       [&](at::Tensor mine, const at::Tensor& whole) {
                         test::expect_within(mine.contiguous(), whole.contiguous(), limit_of(whole),
                                             concat(config.name, ": ", piece.parameter->name));
                         mine.zero_();
                       });
          if (values.numel() > 0) {
            EXPECT_EQ(values.abs().max().item<double>(), 0) << config.name << " writes padding";
          }
        }
      },
      options);
}

OptimizerConfig config_of(const std::string& name) {
  OptimizerConfig c;
  c.name = name;
  if (name == "galore") c.rank = 2, c.update_every = 4;
  return c;
}

/// All rules except adam8bit, whose blocks of codes start where the pieces of a rank start.
std::vector<std::string> exact_rules() {
  std::vector<std::string> names = rule_names();
  std::erase(names, "adam8bit");
  return names;
}

const std::vector<std::string> kTensorwise{"lamb", "lars", "adafactor", "came", "galore", "muon"};

TEST(Stacks, EqualSeparateMatrices) {
  for (const std::string& name : exact_rules()) {
    const OptimizerConfig config = config_of(name);
    const Tensors want = separately_trained(config);
    for (const Sharding& sharding : shardings())
      EXPECT_NO_THROW(expect_trains_to(config, want, sharding)) << to_string(sharding);
  }
}

/// The comparison fails if a rule takes a stack for one tensor.
TEST(Stacks, DifferFromOneTensor) {
  for (const std::string& name : kTensorwise) {
    const OptimizerConfig config = config_of(name);
    const Tensors want = separately_trained(config);
    EXPECT_THROW(expect_trains_to(config, want, {}, /*is_stack=*/false), test::ParityError) << name;
  }
}

TEST(Stacks, NeedTheirCollectives) {
  for (const std::string& name : kTensorwise) {
    const OptimizerConfig config = config_of(name);
    const Tensors want = separately_trained(config);
    EXPECT_THROW(expect_trains_to(config, want, {.data = 2, .zero = true}, true, {.collectives_off = true}),
                 test::ParityError)
        << name;
  }
}

/// A state of a stack has the states of its matrices one after the other, under one name.
TEST(Stacks, StackTheStatesOfMatrices) {
  for (const std::string& name : exact_rules()) {
    Tensors separate, stacked;
    separately_trained(config_of(name), &separate);
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {});
      nn::Parameters parameters({}, kOptions);
      declare_stacks(parameters, false);
      std::vector<memory::Shard> shards{make_shard(parameters)};
      const auto optimizer = make_optimizer(config_of(name), shards, {parameters, mesh});
      train(*optimizer, shards, mesh.coordinates());
      read_states(*optimizer, stacked);
    });
    size_t matrices = 0;
    for (const auto& [state, values] : stacked)
      for (int64_t e = 0; e < kExperts; ++e) {
        const auto one = separate.find(concat(state, ".", e));
        if (one == separate.end()) continue;
        const at::Tensor want = one->second.reshape({-1}), got = values.reshape({kExperts, -1}).select(0, e);
        EXPECT_NO_THROW(test::expect_within(got, want, limit_of(want), concat(name, ": ", one->first)));
        ++matrices;
      }
    const auto is_dense = [](const auto& state) { return state.first.ends_with(".dense"); };
    EXPECT_EQ(matrices + static_cast<size_t>(std::count_if(stacked.begin(), stacked.end(), is_dense)), separate.size())
        << name;
  }
}

TEST(Stacks, SaveFactoredMomentsAndProjectionsByExpert) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto shapes = [&](const std::string& name) {
      comm::Mesh mesh(world, {});
      nn::Parameters parameters({}, kOptions);
      declare_stacks(parameters, false);
      std::vector<memory::Shard> shards{make_shard(parameters)};
      std::map<std::string, std::vector<int64_t>> all;
      for (const StateTensor& state : make_optimizer(config_of(name), shards, {parameters, mesh})->state())
        all[state.name] = state.spec.shape;
      return all;
    };
    const auto factored = shapes("adafactor");
    EXPECT_THAT(factored.at("factored_rows.gate_up"), testing::ElementsAre(5, 6));
    EXPECT_THAT(factored.at("factored_columns.gate_up"), testing::ElementsAre(5, 4));
    EXPECT_THAT(factored.at("factored_rows.dense"), testing::ElementsAre(6));
    EXPECT_THAT(factored.at("exp_avg_sq.bias"), testing::ElementsAre(5, 6));
    const auto projected = shapes("galore");
    EXPECT_THAT(projected.at("projection.down"), testing::ElementsAre(5, 4, 2));
    EXPECT_THAT(projected.at("exp_avg.down"), testing::ElementsAre(5, 2, 7));
    EXPECT_THAT(projected.at("exp_avg_sq.up"), testing::ElementsAre(5, 6, 2));
  });
}

}  // namespace
}  // namespace colossal::optim::stacks_test
