// Chunks that are gathered and released under an unaware module: values, communication and memory.
#include "colossal/memory/chunk_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/store_plan.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/tensor/read_scope.h"
#include "memory/foreign_module.h"
#include "support/counting_store.h"
#include "support/decorated_world.h"
#include "support/thrown_message.h"

namespace colossal::memory::chunk_store_test {
namespace {

/// Records when a collective of its group starts (its number) and when a caller waits for it (minus that number).
class Diary final : public comm::GroupDecorator {
 public:
  Diary(std::shared_ptr<comm::Group> inner, std::vector<int>& entries)
      : GroupDecorator(std::move(inner)), entries_(entries) {}
  comm::Work issue(const comm::Call& call) override {
    entries_.push_back(++begun_);
    return comm::Work(std::make_shared<Waited>(inner_->issue(call), entries_, begun_));
  }

 private:
  class Waited final : public comm::Work::State {
   public:
    Waited(comm::Work inner, std::vector<int>& entries, int number)
        : inner_(std::move(inner)), entries_(entries), number_(number) {}
    void wait() override {
      entries_.push_back(-number_);
      inner_.wait();
    }
    bool done() override { return inner_.done(); }

   private:
    comm::Work inner_;
    std::vector<int>& entries_;
    const int number_;
  };
  std::vector<int>& entries_;
  int begun_ = 0;
};

TEST(ChunkStore, OverlapsSeveralGathersInUpdated) {
  comm::run_ranks(2, [&](comm::World& world) {
    std::vector<int> entries;
    test::DecoratedWorld written(world, [&](auto group) { return std::make_shared<Diary>(std::move(group), entries); });
    comm::Mesh mesh(written, {comm::Mesh::batch("data", 2)});
    Foreign module, alone;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(1, 256));
    for (Shard& shard : store.shards()) shard.lease({.values = Access::Write})->values.mul_(2);
    entries.clear();
    store.updated();
    ASSERT_EQ(store.chunks().size(), 9u);
    EXPECT_THAT(entries, testing::ElementsAre(1, 2, 3, 4, -1, 5, -2, 6, -3, 7, -4, 8, -5, 9, -6, -7, -8, -9));
    for (const nn::Parameter& p : *parameters)
      EXPECT_TRUE(at::equal(p.value, 2 * alone.named_parameters()[p.name])) << p.name;
  });
}

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, MatchesAnUnshardedModule) {
  Foreign alone;
  const at::Tensor want = alone.forward(input());
  want.backward();
  comm::run_ranks(GetParam(), [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", world.size())});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3));
    parallel::GradientReducer reducer(store, {.sums = at::kDouble, .each_pass = true});
    for (int pass = 0; pass < 3; ++pass) {
      reducer.zero();
      const at::Tensor loss = module.forward(input());
      EXPECT_TRUE(at::equal(loss, want));
      reducer.begin(true);
      (loss / world.size()).backward();
      reducer.finish();
      store.end_pass();
      for (const auto& chunk : store.chunks()) EXPECT_EQ(chunk->state(), Chunk::State::Sharded);
      EXPECT_EQ(store.counts().gathered, 0);
      for (const Shard& shard : store.shards())
        for (const Piece& piece : shard.pieces()) {
          const at::Tensor whole = alone.named_parameters()[piece.parameter->name].grad();
          const at::Tensor part = shard.lease()->gradients.narrow(0, piece.offset, piece.part.size);
          // The unused layer has no gradients.
          if (!whole.defined())
            EXPECT_EQ(part.abs().sum().item<double>(), 0) << piece.parameter->name;
          else
            EXPECT_TRUE(at::allclose(part, whole.view(-1).narrow(0, piece.part.first, piece.part.size), 1e-12, 1e-12))
                << piece.parameter->name;
        }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Sizes, Ranks, testing::Values(1, 2, 3));

// Chunks: {0, bias 0}, {1, bias 1}, {2}, {3, bias 3}, {4, bias 4}; 3 is never used. Forward gathers 0 1 2 4 0. Backward
//         finds 0 and 4 gathered and gathers 2 and 1. It does not read the weight of the first layer again, because
//         that layer's input requires no gradient.
TEST(ChunkStore, GathersAndReleasesAChunkOnceForwardAndOnceBackward) {
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3));
    ASSERT_EQ(store.chunks().size(), 5u);
    for (int pass = 0; pass < 4; ++pass) {
      const auto before = store.counts();
      module.forward(input()).backward();
      store.end_pass();
      EXPECT_EQ(store.counts().gathers - before.gathers, 5 + 2) << "pass " << pass;
      EXPECT_EQ(store.counts().releases - before.releases, 5 + 2) << "pass " << pass;
    }
    EXPECT_LE(store.counts().peak_gathered, 2 * store.chunks()[0]->bytes());
  });
}

/// Gathers chunks when they are used, and writes down the order of uses.
struct NotedUses final : Placement {
  explicit NotedUses(std::vector<size_t>& uses) : order(uses) {}
  ChunkMoves before_use(const Situation& now) override {
    order.push_back(*now.timeline.current());
    return {};
  }
  std::vector<size_t>& order;
};

// Kernels of the CPU call operators that those of meta do not, for instance to expand a bias.
TEST(ChunkStore, CountsNoUsesInsideOfAnOperator) {
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    std::vector<size_t> uses;
    ChunkStore store(*parameters, mesh, options_of(3), std::make_unique<NotedUses>(uses));
    const auto read_by = [&](size_t chunk) { return store.chunks()[chunk]->slots().front().parameter->value; };
    const at::Tensor first = read_by(0), second = read_by(1), third = read_by(2);
    {
      const tensor::ReadScope read({first, second});
      for (const at::Tensor& value : {first, second, first, third, second}) value.detach().clone();
    }
    first.detach().clone();
    EXPECT_THAT(uses, testing::ElementsAre(0, 1, 2, 0)) << "the third chunk is not in the scope";
    store.end_pass();
  });
}

TEST(ChunkStore, GathersParametersReadOutsideAPass) {
  Foreign alone;
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3));
    for (const auto& p : module.named_parameters())
      EXPECT_TRUE(at::equal(p.value(), alone.named_parameters()[p.key()])) << p.key();
  });
}

TEST(ChunkStore, ShowsUpdatedValuesToReaders) {
  for (const int zero : {0, 1, 2, 3})
    comm::run_ranks(2, [&](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
      Foreign module;
      const auto parameters = adopt(module, mesh);
      ChunkStore store(*parameters, mesh, options_of(zero));
      at::Tensor read = module.layers[1]->weight.clone();
      for (Shard& shard : store.shards()) shard.lease()->values.add_(1);
      store.updated();
      EXPECT_TRUE(at::equal(module.layers[1]->weight, read + 1)) << "zero " << zero;
    });
}

// Parameters that were trained when the store was made remain sharded; otherwise the replicas would differ.
TEST(ChunkStore, UpdatesParametersFrozenLaterOnAllRanks) {
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(1));
    const at::Tensor before = module.layers[1]->weight.detach().clone();
    module.layers[1]->weight.requires_grad_(false);
    for (Shard& shard : store.shards()) shard.lease()->values.add_(1);
    store.updated();
    EXPECT_TRUE(at::equal(module.layers[1]->weight, before + 1));
  });
}

TEST(ChunkStore, ShardsFrozenParametersWithoutUpdatingThem) {
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module, alone;
    module.layers[1]->weight.requires_grad_(false);
    alone.layers[1]->weight.requires_grad_(false);
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3));
    for (const Shard& shard : store.shards())
      for (const Piece& piece : shard.pieces()) EXPECT_NE(piece.parameter->name, "layer1.weight");
    ASSERT_EQ(store.frozen().size(), 1u);
    EXPECT_EQ(store.frozen()[0].pieces()[0].parameter->name, "layer1.weight");
    EXPECT_TRUE(at::equal(module.forward(input()), alone.forward(input())));
  });
}

TEST(ChunkStore, LeavesParametersUsableAfterItsEnd) {
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    Foreign module, alone;
    const auto parameters = adopt(module, mesh);
    at::Tensor weight;
    {
      ChunkStore store(*parameters, mesh, options_of(1));
      weight = module.layers[0]->weight;
    }
    EXPECT_TRUE(at::equal(weight, alone.layers[0]->weight));
  });
}

/// Throws on every rank instead of making the all_gather of one number, counted from 0.
class LosesAGather final : public comm::GroupDecorator {
 public:
  LosesAGather(std::shared_ptr<comm::Group> inner, int left) : GroupDecorator(std::move(inner)), left_(left) {}
  comm::Work issue(const comm::Call& call) override {
    require(call.collective != comm::Collective::AllGather || left_-- != 0, "test", "the gather is lost");
    return inner_->issue(call);
  }

 private:
  int left_;
};

// The first call that can throw reports the error, here before the pass ends, as GradientReducer does. The policy does
// not name the chunk then, because the chunk was not gathered.
TEST(ChunkStore, RecoversFromAFailedGather) {
  Foreign alone;
  const at::Tensor want = alone.forward(input());
  comm::run_ranks(2, [&](comm::World& world) {
    test::DecoratedWorld faulty(
        world, [](std::shared_ptr<comm::Group> group) { return std::make_shared<LosesAGather>(std::move(group), 1); });
    comm::Mesh mesh(faulty, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3), std::make_unique<GatherWithin>(int64_t{1} << 30));
    EXPECT_TRUE(module.forward(input()).isnan().item<bool>());
    EXPECT_THAT(test::thrown_message([&] { store.rethrow(); }), testing::HasSubstr("the gather is lost"));
    store.end_pass();
    for (const auto& chunk : store.chunks()) EXPECT_EQ(chunk->state(), Chunk::State::Sharded) << chunk->index();
    EXPECT_EQ(store.counts().gathered, 0);
    EXPECT_EQ(store.counts().releases, store.counts().gathers) << "what was not gathered is not counted";
    EXPECT_TRUE(at::equal(module.forward(input()), want));
    store.end_pass();
  });
}

TEST(ChunkStore, RecoversFromAFailedLoad) {
  Foreign alone;
  const at::Tensor want = alone.forward(input());
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    const auto offload = std::make_shared<test::CountingStore>();
    ChunkOptions options = options_of(3, 200);  // weights are cut into two segments
    options.offload = offload;
    ChunkStore store(*parameters, mesh, options);
    for (const size_t broken : {0, 1, 2, 3}) {
      offload->broken = broken;
      EXPECT_TRUE(module.forward(input()).isnan().item<bool>());
      EXPECT_THAT(test::thrown_message([&] { store.end_pass(); }), testing::HasSubstr("is broken"));
      EXPECT_EQ(offload->borrowed(), 0) << "whatever came is back";
      offload->broken = static_cast<size_t>(-1);
      EXPECT_TRUE(at::equal(module.forward(input()), want));
      store.end_pass();
      EXPECT_EQ(offload->borrowed(), 0);
    }
  });
}

// No rank waits: the rank without its part runs the pass like the others, which get NaN in place of that part.
TEST(ChunkStore, KeepsOtherRanksRunningAfterAFailedLoad) {
  Foreign alone;
  const at::Tensor want = alone.forward(input());
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    const auto offload = std::make_shared<test::CountingStore>();
    ChunkOptions options = options_of(3, 200);
    options.offload = offload;
    ChunkStore store(*parameters, mesh, options);
    const auto gathers_of_a_pass = [&] {
      const int64_t before = store.counts().gathers;
      at::Tensor y = module.forward(input());
      store.close_pass();
      return std::pair(store.counts().gathers - before, y);
    };
    gathers_of_a_pass();  // the first pass, which has no predictions
    const int64_t gathers = gathers_of_a_pass().first;
    int64_t seen = 0;  // a missing part is not seen if it is padding
    for (const size_t broken : {0, 1, 2, 3}) {
      const bool is_broken = world.rank() == 1;
      if (is_broken) offload->broken = broken;
      const auto [count, y] = gathers_of_a_pass();
      EXPECT_EQ(count, gathers) << broken;
      seen += y.isnan().item<bool>();
      EXPECT_TRUE(store.takes_part());
      const std::string message = test::thrown_message([&] { store.rethrow(); });
      EXPECT_EQ(message.find("is broken") != std::string::npos, is_broken) << message;
      EXPECT_EQ(message.empty(), !is_broken);
      EXPECT_EQ(offload->borrowed(), 0);
      offload->broken = static_cast<size_t>(-1);
      store.release_all();
      EXPECT_TRUE(at::equal(module.forward(input()), want));
      store.end_pass();
    }
    EXPECT_GT(seen, 0);
  });
}

/// Counts the collectives that start; a wait for the first one throws.
class LosesAWait final : public comm::GroupDecorator {
 public:
  LosesAWait(std::shared_ptr<comm::Group> inner, int& begun) : GroupDecorator(std::move(inner)), begun_(begun) {}
  comm::Work issue(const comm::Call& call) override {
    comm::Work work = inner_->issue(call);
    return ++begun_ == 1 ? comm::Work(std::make_shared<Lost>(std::move(work))) : work;
  }

 private:
  class Lost final : public comm::Work::State {
   public:
    explicit Lost(comm::Work inner) : inner_(std::move(inner)) {}
    void wait() override {
      inner_.wait();
      throw Error("test", "the wait is lost");
    }
    bool done() override { return inner_.done(); }

   private:
    comm::Work inner_;
  };
  int& begun_;
};

// If a chunk were left out, the other ranks would match its collective with the one of the next chunk.
TEST(ChunkStore, GathersAllChunksAfterAFailedWait) {
  comm::run_ranks(2, [&](comm::World& world) {
    int begun = 0;
    test::DecoratedWorld faulty(world,
                                [&](auto group) { return std::make_shared<LosesAWait>(std::move(group), begun); });
    comm::Mesh mesh(faulty, {comm::Mesh::batch("data", 2)});
    Foreign module, alone;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(1, 256));
    for (Shard& shard : store.shards()) shard.lease({.values = Access::Write})->values.mul_(2);
    begun = 0;
    EXPECT_THAT(test::thrown_message([&] { store.updated(); }), testing::HasSubstr("the wait is lost"));
    EXPECT_EQ(begun, 9);
    for (const nn::Parameter& p : *parameters)
      EXPECT_TRUE(at::equal(p.value, 2 * alone.named_parameters()[p.name])) << p.name;
  });
}

/// Starts the gather of a chunk that no operator uses, and keeps the chunk.
struct GatherInVain final : Placement {
  explicit GatherInVain(size_t chunk) : chunk(chunk) {}
  ChunkMoves before_use(const Situation&) override { return {{}, {chunk}}; }
  std::vector<size_t> after_pass(const Situation&) override { return {}; }
  size_t chunk;
};

// A pending gather would read memory that an optimizer writes.
TEST(ChunkStore, EndsGathersWithThePass) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    Foreign module;
    const auto parameters = adopt(module, mesh);
    ChunkStore store(*parameters, mesh, options_of(3), std::make_unique<GatherInVain>(3));
    module.forward(input());
    ASSERT_EQ(store.chunks()[3]->state(), Chunk::State::Gathering);
    store.end_pass();
    EXPECT_EQ(store.chunks()[3]->state(), Chunk::State::Gathered);
  });
}

// The chunks of a model do not depend on other models, so its sums and norms do not either.
TEST(ChunkStore, PlansChunksOfEachModelIndependently) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {});
    const auto add_layers = [](nn::Parameters& parameters, int64_t layers, int64_t size) {
      for (int64_t i = 0; i < layers; ++i)
        parameters.add(concat("blocks.", i, ".weight"), tensor::ShardSpec::whole({size}), {}, true);
    };
    const auto sizes_of = [&](nn::Parameters& parameters, const std::string& model) {
      std::vector<int64_t> sizes;
      for (const PlannedChunk& chunk : plan_store(parameters, mesh, {.capacity = 100}).chunks) {
        const std::string& of = chunk.slots.front().parameter->model;
        for (const Slot& slot : chunk.slots) EXPECT_EQ(slot.parameter->model, of);
        if (of == model) sizes.push_back(chunk.length);
      }
      return sizes;
    };
    nn::Parameters first(mesh.coordinates(), {}), second(mesh.coordinates(), {}), both(mesh.coordinates(), {});
    add_layers(first, 5, 30);
    add_layers(second, 7, 41);
    add_layers(both, 5, 30);
    both.begin_model({.model = "critic"});
    add_layers(both, 7, 41);
    EXPECT_EQ(sizes_of(both, ""), sizes_of(first, ""));
    EXPECT_EQ(sizes_of(both, "critic"), sizes_of(second, ""));
  });
}

TEST(ChunkStore, RefusesSharingGroupsThatDoNotDivideTheReplicas) {
  const std::string message = test::thrown_message([] {
    comm::run_ranks(3, [](comm::World& world) {
      comm::Mesh mesh(world, {comm::Mesh::batch("data", 3)});
      Foreign module;
      const auto parameters = adopt(module, mesh);
      ChunkOptions options = options_of(3);
      options.sharers = 2;
      ChunkStore store(*parameters, mesh, options);
    });
  });
  EXPECT_NE(message.find("[zero] the number of sharing replicas must divide the number of replicas: got 2 of 3"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace colossal::memory::chunk_store_test
