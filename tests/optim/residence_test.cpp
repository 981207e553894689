// Offloading the tensors of a shard between leases does not change the steps of any rule, so no rule keeps references
// to tensors.
#include "colossal/memory/chunk_store.h"
#include "colossal/optim/gradient_norm.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "optim/trajectory.h"
#include "support/counting_store.h"

namespace colossal::optim::residence_test {
namespace {

/// All values of one rank after some steps, then its states.
std::vector<at::Tensor> stepped(const OptimizerConfig& config, RankState& rank) {
  const auto optimizer = make_optimizer(config, rank.shards, {rank.parameters, rank.mesh});
  std::vector<at::Tensor> found;
  for (int64_t t = 1; t <= 3; ++t) {
    rank.set_gradients(t, 4);
    optimizer->step(t, rate_of(t), 0.25);
  }
  for (const memory::Shard& shard : rank.shards) found.push_back(shard.lease()->values.clone());
  for (const StateTensor& t : optimizer->state()) {
    found.push_back(t.value.clone());
    t.value.write().value.mul_(0.5);  // fills it as a checkpoint does
  }
  rank.set_gradients(4, 4);
  optimizer->step(4, rate_of(4), 0.25);
  for (const memory::Shard& shard : rank.shards) found.push_back(shard.lease()->values.clone());
  return found;
}

class EveryRule : public testing::TestWithParam<std::string> {};

TEST_P(EveryRule, StepsEquallyWithOffloadedShards) {
  OptimizerConfig c;
  c.name = GetParam();
  if (c.name == "galore") c.rank = 3;
  for (const Layout& layout : {Layout{}, Layout{2, 2, true}})
    comm::run_ranks(layout.data * layout.tensor, [&](comm::World& world) {
      const auto offload = std::make_shared<test::CountingStore>();
      RankState here(world, layout), there(world, layout, offload);
      const auto want = stepped(c, here), got = stepped(c, there);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(at::equal(got[i], want[i])) << "tensor " << i << " under " << to_string(layout);
      EXPECT_GT(offload->borrows(), 0);
      EXPECT_GT(offload->prefetches(), 0) << "the second shard while the first is updated";
    });
}
INSTANTIATE_TEST_SUITE_P(Residence, EveryRule, testing::ValuesIn(rule_names()),
                         [](const auto& info) { return info.param; });

TEST(Residence, LoadsGradientsForNormsAndClipping) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto offload = std::make_shared<test::CountingStore>();
    RankState here(world, {}), there(world, {}, offload);
    here.set_gradients(1, 1);
    there.set_gradients(1, 1);
    offload->reset_counts();
    for (const NormOrder order : {NormOrder::Two, NormOrder::Infinity})
      EXPECT_EQ(gradient_norm(there.shards, there.mesh, order), gradient_norm(here.shards, here.mesh, order));
    EXPECT_EQ(offload->counts.size(), 4u) << "values and gradients of two shards";
    for (const size_t values : {0, 2}) EXPECT_EQ(offload->counts[values].borrows, 0);
    for (const size_t gradients : {1, 3}) EXPECT_EQ(offload->counts[gradients].borrows, 2);
    EXPECT_EQ(offload->written(), 0);
    clip_by_value(there.shards, 0.5);
    EXPECT_EQ(offload->written(), 2);
    EXPECT_EQ(gradient_norm(there.shards, there.mesh, NormOrder::Infinity), 0.5);
  });
}

/// In the two passes of a step only parts of sharded parameters are loaded, for gathers. The second pass also loads the
/// gradients of the first, if they are sharded.
void expect_gradients_alone(const test::CountingStore& offload, int zero, size_t shards, int64_t gathers) {
  // The store has for each chunk its part, if it is sharded, and its master weights; then two states of each.
  const size_t gradients = (zero == 3 ? 4 : 3) * shards;
  EXPECT_EQ(offload.borrows(0, gradients), gathers) << "zero " << zero;
  EXPECT_EQ(gathers > 0, zero == 3);
  EXPECT_EQ(offload.borrows(gradients), zero >= 2 ? static_cast<int64_t>(shards) : 0) << "zero " << zero;
  // Gradients are stored in the place of the parameters with zero 3.
  EXPECT_EQ(offload.places(), static_cast<int64_t>(gradients + (zero == 2 ? shards : 0))) << "zero " << zero;
}

/// The bf16 parameters of two replicas after three steps of AdamW on fp32 masters.
std::vector<at::Tensor> trained(int zero, const std::shared_ptr<test::CountingStore>& offload) {
  std::vector<at::Tensor> values;
  comm::run_ranks(2, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    nn::Parameters parameters(mesh.coordinates(), {at::kBFloat16, at::kCPU, 1});
    for (const char* name : {"a", "b", "c"})
      parameters.add(name, tensor::ShardSpec::whole({9, 7}), nn::Init::normal(1), true);
    memory::ChunkOptions options;
    options.sharing = memory::Sharing::of_stage(zero);
    options.capacity = 100;
    options.masters = at::kFloat;
    options.offload = world.rank() == 0 ? offload : nullptr;  // the offload store of one rank only
    memory::ChunkStore store(parameters, mesh, options);
    parallel::GradientReducer reducer(store, {.sums = at::kFloat, .each_pass = zero >= 2});
    const auto optimizer = make_optimizer({}, store.shards(), {parameters, mesh});
    for (int64_t t = 1; t <= 3; ++t) {
      if (options.offload) offload->reset_counts();
      const int64_t gathers_before = store.counts().gathers;
      reducer.zero();
      for (const bool last : {false, true}) {
        at::Tensor loss = at::zeros({});
        for (nn::Parameter& p : parameters)
          loss = loss + (p.value - gradient_of(p.name, {9, 7}, t + world.rank()).to(at::kBFloat16)).square().sum();
        reducer.begin(last);
        loss.backward();
      }
      reducer.finish();
      store.end_pass();
      if (options.offload)
        expect_gradients_alone(*offload, zero, store.shards().size(), store.counts().gathers - gathers_before);
      optimizer->step(t, 0.05, 1);
      store.updated();
    }
    for (nn::Parameter& p : parameters) {
      const at::Tensor value = p.value.detach().clone();  // zero 3: gathered by both
      if (world.rank() == 0) values.push_back(value);
    }
  });
  return values;
}

TEST(Residence, TrainsEquallyWithOffloadedTensors) {
  for (const int zero : {0, 1, 2, 3}) {
    const auto offload = std::make_shared<test::CountingStore>();
    const auto here = trained(zero, nullptr), there = trained(zero, offload);
    ASSERT_EQ(there.size(), 3u);
    for (size_t i = 0; i < there.size(); ++i)
      EXPECT_TRUE(at::equal(there[i], here[i])) << "zero " << zero << ", parameter " << i;
    EXPECT_GT(offload->borrows(), 0);
  }
}

// Number of leases of each tensor of a shard in one step.
TEST(Residence, LoadsEachTensorOncePerPassOfTheRule) {
  struct Walks {
    int64_t values, gradients, states;
  };
  const std::map<std::string, Walks> walks{{"adamw", {1, 1, 1}},  {"adam", {1, 1, 1}},      {"sgd", {1, 1, 1}},
                                           {"lion", {1, 1, 1}},   {"adam8bit", {1, 1, 1}},  {"lamb", {2, 2, 1}},
                                           {"lars", {2, 2, 1}},   {"adafactor", {2, 3, 2}}, {"came", {1, 4, 2}},
                                           {"galore", {1, 3, 1}}, {"muon", {1, 3, 1}}};
  for (const std::string& name : rule_names())
    comm::run_ranks(1, [&](comm::World& world) {
      OptimizerConfig c;
      c.name = name;
      if (c.name == "galore") c.rank = 3;
      const auto offload = std::make_shared<test::CountingStore>();
      RankState rank(world, {}, offload);
      offload->reset_counts();
      const auto optimizer = make_optimizer(c, rank.shards, {rank.parameters, rank.mesh});
      EXPECT_EQ(offload->borrows(), 0) << name << ": to make states nothing is borrowed";
      rank.set_gradients(1, 4);
      offload->reset_counts();
      optimizer->step(1, rate_of(1), 0.25);
      const Walks& want = walks.at(name);
      for (const size_t values : {0, 2}) EXPECT_EQ(offload->counts[values].borrows, want.values) << name;
      for (const size_t gradients : {1, 3}) EXPECT_EQ(offload->counts[gradients].borrows, want.gradients) << name;
      for (size_t state = 4; state < offload->counts.size(); ++state)
        EXPECT_EQ(offload->counts[state].borrows, want.states) << name << ", state " << state - 4;
      for (const size_t values : {0, 2}) EXPECT_EQ(offload->counts[values].written, 1) << name;
    });
}

TEST(Residence, SharesConcurrentLeases) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto offload = std::make_shared<test::CountingStore>();
    RankState rank(world, {}, offload);
    const memory::Lease first = rank.shards[0].lease();
    const int64_t before = offload->borrows();
    const memory::Lease second = rank.shards[0].lease();
    EXPECT_EQ(first, second);
    EXPECT_EQ(offload->borrows(), before);
  });
}

}  // namespace
}  // namespace colossal::optim::residence_test
