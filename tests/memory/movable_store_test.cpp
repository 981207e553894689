// The tensors of a chunk are either in a store of the host or on the device, and have the same values in both places.
#include "colossal/memory/movable_store.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/memory/shard.h"
#include "colossal/memory/tiers/tiered_store.h"

namespace colossal::memory::movable_store_test {
namespace {

constexpr int64_t kLength = 2048, kBytes = kLength * 4;

at::Tensor numbers(double from) { return at::arange(kLength, at::kFloat).add_(from); }

struct MovableStores : testing::Test {
  std::shared_ptr<std::atomic<int64_t>> on_device = std::make_shared<std::atomic<int64_t>>(0);
  std::shared_ptr<TieredStore> tiers = std::make_shared<TieredStore>(TieredStore::Options{});
  std::shared_ptr<MovableStore> store = std::make_shared<MovableStore>(tiers, at::kCPU, on_device);

  int64_t in_host() const { return tiers->counts().host_bytes; }
};

TEST_F(MovableStores, TakesNoHostMemoryWhileOnTheDevice) {
  const auto first = store->offload(numbers(1)), second = store->offload(numbers(2));
  EXPECT_EQ(in_host(), 2 * kBytes);
  EXPECT_EQ(*on_device, 0);
  store->move(true);
  EXPECT_TRUE(store->is_on_device());
  EXPECT_EQ(in_host(), 0);
  EXPECT_EQ(*on_device, 2 * kBytes);
  const auto third = store->offload(numbers(3));
  EXPECT_EQ(*on_device, 3 * kBytes) << "what comes later is there, too";
  EXPECT_EQ(store->bytes(), 3 * kBytes);
  at::Tensor borrowed = second->borrow();
  EXPECT_TRUE(at::equal(borrowed, numbers(2)));
  borrowed.add_(5);
  second->return_borrowed(borrowed, true);
  store->move(false);
  EXPECT_EQ(in_host(), 3 * kBytes);
  EXPECT_EQ(*on_device, 0);
  EXPECT_TRUE(at::equal(first->borrow(), numbers(1)));
  EXPECT_TRUE(at::equal(second->borrow(), numbers(7)));
  EXPECT_TRUE(at::equal(third->borrow(), numbers(3)));
}

TEST_F(MovableStores, MovesDiscardedTensors) {
  const auto offloaded = store->offload(numbers(1));
  offloaded->discard();
  store->move(true);
  EXPECT_EQ(*on_device, 0) << "there are no values";
  EXPECT_EQ(store->bytes(), kBytes) << "but there may be";
  offloaded->replace(numbers(4));
  EXPECT_EQ(*on_device, kBytes);
  offloaded->discard();
  EXPECT_EQ(*on_device, 0);
  store->move(false);
  EXPECT_EQ(in_host(), 0);
  offloaded->replace(numbers(6));
  EXPECT_TRUE(at::equal(offloaded->borrow(), numbers(6)));
}

TEST_F(MovableStores, ServesShardsInEitherPlace) {
  const Shard shard(Shard::Parts::of(numbers(0), store), {});
  shard.add_state(numbers(10));
  for (const bool there : {true, false, true}) {
    store->move(there);
    shard.lease({.gradients = Access::Write})->gradients = numbers(20);
    EXPECT_EQ(*on_device, there ? 3 * kBytes : 0);
    EXPECT_EQ(in_host(), there ? 0 : 3 * kBytes);
    {
      const Lease lease = shard.lease();
      lease->values.add_(lease->gradients);
      lease->states[0].mul_(2);
    }
    shard.drop_gradients();
  }
  const Lease lease = shard.lease();
  EXPECT_TRUE(at::equal(lease->values, numbers(0) + 3 * numbers(20)));
  EXPECT_TRUE(at::equal(lease->states[0], 8 * numbers(10)));
}

}  // namespace
}  // namespace colossal::memory::movable_store_test
