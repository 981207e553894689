// Weights that are filled when they are loaded: their memory before that, which of them are resident, and errors.
#include "colossal/memory/tiers/loaded_store.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/tiers/block_file.h"
#include "support/counting_store.h"
#include "support/thrown_message.h"

namespace colossal::memory::loaded_store_test {
namespace {

/// Returns a tensor that has sizes but no memory.
at::Tensor hollow(int64_t numel) { return at::empty({1}, at::kFloat).expand({numel}); }

void fill(OffloadedTensor& offloaded, double value) {
  const at::Tensor borrowed = offloaded.borrow();
  borrowed.fill_(value);
  offloaded.return_borrowed(borrowed, true);
}

double read(OffloadedTensor& offloaded) {
  const at::Tensor borrowed = offloaded.borrow();
  const double value = borrowed.min().item<double>();
  offloaded.return_borrowed(borrowed, false);
  return value;
}

TEST(LoadedStore, TakesNoMemoryBeforeItIsFilled) {
  const auto others = std::make_shared<test::CountingStore>();
  LoadedStore loaded(others, {.all = 3 * kBlock, .stays = 0, .largest = kBlock});
  const auto first = loaded.offload(hollow(kBlock / 4)), second = loaded.offload(hollow(kBlock / 4));
  EXPECT_TRUE(others->counts.empty());
  fill(*second, 2);
  EXPECT_EQ(others->counts.size(), 1u);
  fill(*first, 1);
  EXPECT_EQ(read(*first), 1);
  EXPECT_EQ(read(*second), 2);
  EXPECT_EQ(loaded.stayed_bytes(), 0);
}

TEST(LoadedStore, SpreadsResidentTensorsEvenly) {
  const auto others = std::make_shared<test::CountingStore>();
  // Two large tensors, which must be resident, and a third of the twelve others.
  LoadedStore loaded(others, {.all = (12 + 2 * 3) * kBlock,
                              .stays = (4 + 2 * 3) * kBlock,
                              .largest = kBlock,
                              .above_largest = 2 * 3 * kBlock});
  std::vector<std::unique_ptr<OffloadedTensor>> offloaded;
  std::string here;
  for (int i = 0; i < 14; ++i) {
    const bool is_large = i == 0 || i == 13;
    offloaded.push_back(loaded.offload(hollow((is_large ? 3 : 1) * kBlock / 4)));
    const size_t before = others->counts.size();
    fill(*offloaded.back(), i);
    here += is_large ? 'L' : others->counts.size() == before ? 'x' : '.';
  }
  EXPECT_EQ(here, "Lx..x..x..x..L");
  EXPECT_EQ(loaded.stayed_bytes(), (4 + 2 * 3) * kBlock);
  for (int i = 0; i < 14; ++i) EXPECT_EQ(read(*offloaded[static_cast<size_t>(i)]), i);
}

TEST(LoadedStore, PrefetchesInTheOrderOfStoring) {
  const auto others = std::make_shared<test::CountingStore>();
  LoadedStore loaded(others, {.all = 4 * kBlock, .stays = 0, .largest = kBlock});
  std::vector<std::unique_ptr<OffloadedTensor>> offloaded;
  for (int i = 0; i < 4; ++i) offloaded.push_back(loaded.offload(hollow(kBlock / 4)));
  for (const auto& one : offloaded) fill(*one, 1);
  others->reset_counts();
  read(*offloaded[1]);
  std::vector<int64_t> expected;
  for (const auto& count : others->counts) expected.push_back(count.prefetches);
  EXPECT_EQ(expected, (std::vector<int64_t>{0, 0, 1, 1}));
}

struct FullStore final : OffloadStore {
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor&) override { throw Error("disk", "it is full"); }
};

TEST(LoadedStore, ThrowsAStoreErrorAtTheNextRead) {
  LoadedStore loaded(std::make_shared<FullStore>(), {.all = kBlock, .stays = 0, .largest = kBlock});
  const auto offloaded = loaded.offload(hollow(kBlock / 4));
  fill(*offloaded, 1);
  EXPECT_THAT(test::thrown_message([&] { offloaded->borrow(); }), testing::HasSubstr("it is full"));
}

// The store overwrites a chunk that is returned early, which a copied chunk would not show.
TEST(LoadedStore, ServesChunksThatAreReadInPlace) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 1)});
    nn::Parameters parameters(mesh.coordinates(), {.without_memory = true});
    for (int i = 0; i < 6; ++i)
      parameters.add("p" + std::to_string(i), tensor::ShardSpec::whole({1024}), nn::Init::ones(), false);
    for (nn::Parameter& p : parameters) p.value.requires_grad_(false);
    const auto others = std::make_shared<test::CountingStore>();
    ChunkOptions options{.sharing = Sharing::of_stage(3), .sharers = 1, .capacity = 1024, .inference = true};
    options.offload = std::make_shared<LoadedStore>(
        others, LoadedStore::Residence{.all = 6 * kBlock, .stays = 2 * kBlock, .largest = kBlock});
    ChunkStore store(parameters, mesh, options);
    for_leases(store.frozen(), {.values = Access::Write},
               [](size_t i, Resident& shard) { shard.values.fill_(static_cast<double>(i) + 1); });
    ASSERT_EQ(others->counts.size(), 4u) << "two of six stay";
    for (int pass = 0; pass < 3; ++pass) {
      double value = 0;
      for (const nn::Parameter& p : parameters) EXPECT_EQ(at::sum(p.value).item<double>(), 1024 * ++value);
      EXPECT_GT(others->borrowed(), 0) << "what is whole is borrowed";
      store.end_pass();
    }
    EXPECT_LE(others->peak_borrowed, 2 * 1024) << "the chunk in use and the next one";
    EXPECT_EQ(others->borrows(), 3 * 4);
    others->broken = 2;
    for (const nn::Parameter& p : parameters) at::sum(p.value);
    EXPECT_THAT(test::thrown_message([&] { store.end_pass(); }), testing::HasSubstr("tensor 2 is broken"));
    EXPECT_EQ(others->borrowed(), 0);
  });
}

}  // namespace
}  // namespace colossal::memory::loaded_store_test
