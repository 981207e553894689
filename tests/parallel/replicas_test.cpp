// Replicas follow from specs. Two axes split the batch, dense parameters have copies along both, and experts are split
// over one of them. Chunks, sharers, sums and norms follow, whatever the axes are called.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/parallel/data/gradient_reducer.h"

namespace colossal::parallel::replicas_test {
namespace {

constexpr int kReplicas = 2, kExperts = 2;
constexpr int64_t kDense = 37;

std::vector<comm::Mesh::Axis> axes() {
  return {comm::Mesh::batch("replica", kReplicas), comm::Mesh::batch("expert", kExperts)};
}

struct Model {
  explicit Model(comm::Mesh& mesh) : parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 1}) {
    parameters.add("dense", tensor::ShardSpec::whole({kDense}), nn::Init::normal(1), true);
    parameters.add("experts", tensor::ShardSpec::split({4, 5}, 0, {"expert"}), nn::Init::normal(1), true);
    parameters.add("gate", tensor::ShardSpec::whole({3}), nn::Init::normal(1), true);
  }
  at::Tensor loss() {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (nn::Parameter& p : parameters) sum = sum + (p.value * gradient(p, mine)).sum();
    return sum;
  }
  /// Returns the gradient of a parameter's part on the rank at `coordinates`: integers, so sums are exact.
  static at::Tensor gradient(const nn::Parameter& p, const tensor::MeshCoordinates& coordinates) {
    const std::vector<std::string> both{"replica", "expert"};
    const auto rank = static_cast<double>(coordinates.index(both));
    const at::Tensor values = at::zeros(p.spec.local_shape(coordinates), at::kDouble);
    values.view({-1}).copy_(at::arange(values.numel(), at::kDouble).mul(rank + 1).add(rank));
    return values;
  }
  nn::Parameters parameters;
  tensor::MeshCoordinates mine = parameters.coordinates();
};

/// Returns the sum over the ranks that hold the same part as this one.
at::Tensor wanted(const nn::Parameter& p, const tensor::MeshCoordinates& mine) {
  at::Tensor sum = at::zeros(p.spec.local_shape(mine), at::kDouble);
  for (int replica = 0; replica < kReplicas; ++replica)
    for (int expert = 0; expert < kExperts; ++expert) {
      if (p.spec.splits_over("expert") && expert != mine.index("expert")) continue;
      sum += Model::gradient(p, tensor::MeshCoordinates({{"replica", kReplicas, replica, tensor::BatchSplit::Rows},
                                                         {"expert", kExperts, expert, tensor::BatchSplit::Rows}}));
    }
  return sum;
}

/// Calls body(store) on every rank after the gradients of one pass are summed.
template <class Body>
void on_ranks(int zero, int sharers, const Body& body) {
  comm::run_ranks(kReplicas * kExperts, [&](comm::World& world) {
    comm::Mesh mesh(world, axes());
    Model model(mesh);
    memory::ChunkOptions options;
    options.sharing = memory::Sharing::of_stage(zero);
    options.sharers = sharers;
    memory::ChunkStore store(model.parameters, mesh, options);
    GradientReducer reducer(store, {.sums = at::kDouble, .each_pass = zero >= 2});
    reducer.zero();
    reducer.begin(true);
    model.loss().backward();
    reducer.finish();
    store.end_pass();
    body(world, mesh, store);
  });
}

using Case = std::pair<int, int>;  // zero, sharers
std::vector<Case> cases() { return {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {1, 2}, {3, 2}}; }

TEST(Replicas, SumsGradientsOverReplicasOfEachParameter) {
  for (const auto& [zero, sharers] : cases())
    on_ranks(zero, sharers,
             [&, zero = zero, sharers = sharers](comm::World&, comm::Mesh& mesh, memory::ChunkStore& store) {
               for (const memory::Shard& shard : store.shards())
                 for (const memory::Piece& piece : shard.pieces()) {
                   const at::Tensor want = wanted(*piece.parameter, mesh.coordinates()).view({-1});
                   EXPECT_TRUE(at::equal(shard.lease()->gradients.narrow(0, piece.offset, piece.part.size),
                                         want.narrow(0, piece.part.first, piece.part.size)))
                       << piece.parameter->name << ", zero " << zero << ", sharers " << sharers;
                 }
             });
}

TEST(Replicas, ExcludesRanksThatSplitAParameterFromItsChunk) {
  on_ranks(1, 0, [](comm::World&, comm::Mesh&, memory::ChunkStore& store) {
    ASSERT_EQ(store.chunks().size(), 2u);
    EXPECT_EQ(store.chunks()[0]->slots().size(), 2u) << "dense and gate are summed over the same ranks";
    EXPECT_EQ(store.chunks()[0]->sharers().name(), "replica+expert");
    EXPECT_EQ(store.chunks()[1]->sharers().name(), "replica");
  });
}

TEST(Replicas, CountsEveryElementOnce) {
  double squares = 0;  // sum of squares of the logical gradients
  for (int expert = 0; expert < kExperts; ++expert) {
    const tensor::MeshCoordinates coordinates(
        {{"replica", kReplicas, 0, tensor::BatchSplit::Rows}, {"expert", kExperts, expert, tensor::BatchSplit::Rows}});
    nn::Parameters parameters(coordinates, {.dtype = at::kDouble, .seed = 1});
    const auto add = [&](const char* name, tensor::ShardSpec spec) {
      const nn::Parameter& p = parameters.add(name, std::move(spec), nn::Init::zeros(), true);
      squares += wanted(p, coordinates).square().sum().item<double>();
    };
    add("experts", tensor::ShardSpec::split({4, 5}, 0, {"expert"}));
    if (expert > 0) continue;
    add("dense", tensor::ShardSpec::whole({kDense}));
    add("gate", tensor::ShardSpec::whole({3}));
  }
  for (const auto& [zero, sharers] : cases())
    on_ranks(zero, sharers, [&, zero = zero](comm::World&, comm::Mesh& mesh, memory::ChunkStore& store) {
      at::Tensor sum = at::zeros({1}, at::kDouble);
      for (const memory::Shard& shard : store.shards())
        for (const memory::Piece& piece : shard.pieces())
          sum += memory::counted_squares(shard.lease()->gradients, piece, mesh.coordinates());
      mesh.all().all_reduce(sum, comm::Reduce::Sum).wait();
      EXPECT_EQ(sum.item<double>(), squares) << "zero " << zero;
    });
}

// A reduce_scatter among the N sharing replicas sends (N - 1) / N of a chunk; in runs of 2 an all_reduce between runs
// follows.
TEST(Replicas, ExchangesGradientsOnlyAmongReplicas) {
  const auto sent = [](int zero, int sharers, const char* group) {
    int64_t elements = -1;
    on_ranks(zero, sharers, [&](comm::World& world, comm::Mesh& mesh, memory::ChunkStore&) {
      if (world.rank() == 0) elements = world.traffic().total(group).elements;
      mesh.all().barrier().wait();
    });
    return elements;
  };
  const int64_t dense = 64, experts = 32;  // chunks of 40 and 10 elements, padded to 16 for each sharer
  EXPECT_EQ(sent(1, 0, "replica+expert"), dense * 3 / 4);
  EXPECT_EQ(sent(1, 0, "replica"), experts / 2);
  EXPECT_EQ(sent(1, 2, "replica+expert/2"), dense / 2);
  EXPECT_EQ(sent(1, 2, "replica+expert.0.2"), dense / 2) << "all_reduce of a half between two runs";
}

// An axis of rows and an axis of tokens: shards and sums extend over both, but only ranks along the first get
// different rows, by MeshCoordinates::row_axes(), along which the engine counts labels.
TEST(Replicas, ShardsOverTokenAxesButGivesThemTheSameRows) {
  comm::run_ranks(4, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2), comm::Mesh::sequence("sequence", 2)});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble, .seed = 1});
    const nn::Parameter& weight = parameters.add("weight", tensor::ShardSpec::whole({64}), nn::Init::normal(1), true);
    memory::ChunkStore store(parameters, mesh, {.sharing = memory::Sharing::of_stage(3)});
    GradientReducer reducer(store, {.sums = at::kDouble, .each_pass = true});
    reducer.zero();
    reducer.begin(true);
    (weight.value * (world.rank() + 1)).sum().backward();
    reducer.finish();
    store.end_pass();
    EXPECT_EQ(store.chunks().front()->sharers().name(), "data+sequence");
    const auto gradients = store.shards().front().lease()->gradients;
    EXPECT_TRUE(gradients.eq(1 + 2 + 3 + 4).all().item<bool>());

    const tensor::MeshCoordinates& coordinates = mesh.coordinates();
    EXPECT_EQ(coordinates.row_axes(), std::vector<std::string>{"data"});
    EXPECT_EQ(coordinates.index(coordinates.row_axes()), world.rank() / 2)
        << "both ranks of a sequence have the same first row";
  });
}

}  // namespace
}  // namespace colossal::parallel::replicas_test
