// Leases of a shard: the tensors they borrow, the changes the shard keeps, and that no lease sees outdated values.
#include "colossal/memory/shard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "colossal/memory/tiers/tiered_store.h"
#include "support/counting_store.h"

namespace colossal::memory::shard_test {
namespace {

/// Stores copies. While the first one is returned, it gives another thread time to borrow an outdated one.
class SlowStore final : public OffloadStore {
 public:
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override {
    return std::make_unique<Copy>(*this, tensor);
  }
  void wait_for_return() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_returning_; });
  }

 private:
  struct Copy final : OffloadedTensor {
    Copy(SlowStore& store, const at::Tensor& tensor) : store(store), value(tensor.clone()) {}
    int64_t bytes() const override { return static_cast<int64_t>(value.nbytes()); }
    at::Tensor borrow() override {
      const std::lock_guard lock(store.mutex_);
      ++store.borrows_;
      store.changed_.notify_all();
      return value.clone();
    }
    void return_borrowed(const at::Tensor& borrowed, bool) override {
      std::unique_lock lock(store.mutex_);
      store.is_returning_ = true;
      store.changed_.notify_all();
      // No other borrow comes if leases are safe. The wait is then the duration of the test, and has no other effect.
      if (store.borrows_ == 1)
        store.changed_.wait_for(lock, std::chrono::milliseconds(200), [&] { return store.borrows_ > 1; });
      value = borrowed.clone();
    }
    void discard() override {}
    void replace(const at::Tensor& tensor) override { value = tensor.clone(); }
    SlowStore& store;
    at::Tensor value;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  int borrows_ = 0;
  bool is_returning_ = false;
};

/// Returns a shard of four values of 1.
Shard ones_in(const std::shared_ptr<OffloadStore>& store) { return Shard(Shard::Parts::of(at::ones({4}), store), {}); }

TEST(Lease, SeesWritesOfALeaseThatEndsConcurrently) {
  const auto store = std::make_shared<SlowStore>();
  const Shard shard = ones_in(store);
  Lease first = shard.lease();
  first->values.fill_(2);
  std::thread ends([first = std::move(first)]() mutable { first.reset(); });
  store->wait_for_return();
  EXPECT_EQ(shard.lease()->values.sum().item<double>(), 8);
  ends.join();
}

TEST(Lease, SharesOneObjectAmongHolders) {
  const Shard shard = ones_in(std::make_shared<InPlace>());
  const Lease one = shard.lease(), other = shard.lease();
  EXPECT_EQ(one, other);
}

/// Returns a shard in `store`. Tensor 0 is the values, 1 and 2 are states, 3 is the gradients.
Shard shard_in(const std::shared_ptr<OffloadStore>& store) {
  const Shard shard = ones_in(store);
  for (const double first : {10, 20}) shard.add_state(at::full({4}, first));
  shard.lease({.gradients = Access::Write})->gradients = at::full({4}, 30);
  return shard;
}

TEST(Lease, BorrowsOnlyItsNeedsAndWritesBackOnlyChanges) {
  const auto store = std::make_shared<test::CountingStore>();
  const Shard shard = shard_in(store);
  EXPECT_EQ(store->borrows(), 0) << "states and new gradients need nothing of the others";
  {
    shard.prefetch({.gradients = Access::Read});
    const Lease lease = shard.lease({.gradients = Access::Read});
    EXPECT_EQ(lease->gradients.sum().item<double>(), 120);
    EXPECT_FALSE(lease->values.defined());
    ASSERT_EQ(lease->states.size(), 2u);
    EXPECT_FALSE(lease->states[0].defined() || lease->states[1].defined());
    lease->gradients.fill_(0);  // lost, because the access is Read
  }
  EXPECT_EQ(store->prefetches(), 1);
  EXPECT_EQ(store->borrows(), 1);
  EXPECT_EQ(store->written(), 0);
  {
    const Lease lease = shard.lease({.states = Access::Write, .places = {1, 2}});
    EXPECT_FALSE(lease->states[0].defined() || lease->gradients.defined());
    lease->states[1].add_(1);
  }
  EXPECT_EQ(store->written(), 1);
  EXPECT_EQ(store->written(2, 3), 1);
  EXPECT_EQ(shard.lease()->states[1].sum().item<double>(), 84);
  EXPECT_EQ(shard.lease()->gradients.sum().item<double>(), 120);
}

TEST(Lease, GrowsByLaterNeeds) {
  const auto store = std::make_shared<test::CountingStore>();
  const Shard shard = shard_in(store);
  Lease first = shard.lease({.values = Access::Read});
  {
    const Lease second = shard.lease({.values = Access::Write, .states = Access::Read});
    EXPECT_EQ(first, second);
    second->values.fill_(5);
    EXPECT_EQ(store->borrows(0, 1), 1) << "not twice";
    EXPECT_EQ(store->borrows(), 3);
  }
  EXPECT_EQ(store->borrowed(), 12) << "until the last one ends";
  EXPECT_THROW(shard.add_state(at::zeros({4})), Error);
  first.reset();
  EXPECT_EQ(store->borrowed(), 0);
  EXPECT_EQ(shard.lease({.values = Access::Read})->values.sum().item<double>(), 20);
}

// A checkpoint writes the values piece by piece, and reports the change after the last one.
TEST(Lease, RecreatesADroppedCopyBeforePartialWrites) {
  auto store = std::make_shared<TieredStore>(TieredStore::Options{});
  Shard::Parts parts = Shard::Parts::of(at::ones({4}), store);
  parts.copy = store->offload(at::ones({4}, at::kBFloat16));
  const Shard shard(std::move(parts), {});
  shard.drop_gradients_after_update();
  shard.lease({.gradients = Access::Write})->gradients = at::full({4}, 3.0);
  shard.drop_copy();
  shard.lease({.values = Access::Write})->values[0] = 2;
  EXPECT_TRUE(at::equal(shard.lease({.copy = Access::Read})->copy, at::ones({4}, at::kBFloat16)));
  EXPECT_TRUE(shard.lease({.gradients = Access::Read})->gradients.defined()) << "no update has read them";
  shard.lease({.values = Access::Write, .gradients = Access::Read});
  EXPECT_FALSE(shard.lease({.gradients = Access::Read})->gradients.defined());
}

TEST(Lease, HoldsSeparateDirectionsForNarrowerGradients) {
  auto store = std::make_shared<TieredStore>(TieredStore::Options{});
  const Shard shard(Shard::Parts::of(at::ones({kBlock / 4}), store), {});
  const auto in_use = [&] { return store->counts().host_bytes / kBlock; };
  shard.make_place_for_directions();
  EXPECT_EQ(in_use(), 1) << "a place takes nothing before there are some";
  for (int step = 0; step < 2; ++step) {
    shard.lease({.gradients = Access::Write})->gradients = at::full({kBlock / 4}, 2, at::kBFloat16);
    {
      const Lease lease = shard.lease({.gradients = Access::Read, .directions = Access::Write});
      EXPECT_TRUE(at::equal(lease->directions, at::zeros({kBlock / 4}))) << "step " << step;
      lease->directions.copy_(lease->gradients).mul_(0.3);
    }
    EXPECT_EQ(in_use(), 3);
    EXPECT_EQ(shard.bytes(), kBlock);
    const auto last = [&] { return shard.lease({.values = Access::Write, .directions = Access::Read}); };
    EXPECT_TRUE(at::equal(last()->directions, at::full({kBlock / 4}, 2.0).mul_(0.3)));
    EXPECT_EQ(in_use(), 2) << "values and gradients";
  }
}

TEST(Lease, UsesGradientsOfEqualWidthAsDirections) {
  auto store = std::make_shared<TieredStore>(TieredStore::Options{});
  const Shard shard(Shard::Parts::of(at::ones({kBlock / 4}), store), {});
  shard.lease({.gradients = Access::Write})->gradients = at::full({kBlock / 4}, 2.0);
  shard.lease({.gradients = Access::Read, .directions = Access::Write})->directions.add_(1);
  EXPECT_EQ(store->counts().host_bytes, 2 * kBlock);
  EXPECT_TRUE(at::equal(shard.lease({.directions = Access::Read})->directions, at::full({kBlock / 4}, 3.0)));
}

TEST(Lease, FreesTheStorageOfDroppedTensors) {
  const auto store = std::make_shared<test::CountingStore>();
  {
    const Shard shard = shard_in(store);
    EXPECT_EQ(store->places(), 4);
    for (int step = 0; step < 3; ++step) {
      shard.drop_gradients();
      EXPECT_EQ(store->places(), 3);
      EXPECT_FALSE(shard.lease({.gradients = Access::Read})->gradients.defined());
      shard.lease({.gradients = Access::Write})->gradients = at::ones({4}, at::kDouble);
      EXPECT_EQ(store->places(), 4);
    }
    EXPECT_EQ(store->borrows(), 0) << "nothing is borrowed to be dropped or replaced by the first";
    {
      const Lease lease = shard.lease({.gradients = Access::Write});
      shard.drop_gradients();
      EXPECT_FALSE(lease->gradients.defined());
      EXPECT_EQ(store->places(), 3) << "of what is borrowed, too";
    }
    EXPECT_EQ(store->places(), 3);
    {
      const Lease lease = shard.lease({.values = Access::Write});
      lease->values = at::zeros({4}, at::kDouble);
    }
    EXPECT_EQ(store->places(), 3) << "one came, one went";
    EXPECT_EQ(shard.options().dtype(), at::kDouble);
  }
  EXPECT_EQ(store->places(), 0);
}

TEST(Lease, ReturnsBorrowedTensorsAfterAFailure) {
  const auto store = std::make_shared<test::CountingStore>();
  const Shard shard = shard_in(store);
  store->broken = 2;
  EXPECT_THROW(shard.lease(), Error);
  EXPECT_GT(store->borrows(), 0);
  EXPECT_EQ(store->borrowed(), 0);
  {
    const Lease held = shard.lease({.values = Access::Write});
    held->values.fill_(3);
    EXPECT_THROW(shard.lease(), Error);
    EXPECT_EQ(held->values.sum().item<double>(), 12) << "goes on";
  }
  EXPECT_EQ(store->borrowed(), 0);
  store->broken = 99;
  const Lease whole = shard.lease();
  EXPECT_EQ(whole->values.sum().item<double>(), 12);
  EXPECT_EQ(whole->states[1].sum().item<double>(), 80);
}

/// A store with room for one tensor.
struct FullStore final : OffloadStore {
  std::unique_ptr<OffloadedTensor> offload(const at::Tensor& tensor) override {
    require(!std::exchange(is_full, true), "store", "no room is left");
    return InPlace().offload(tensor);
  }
  bool is_full = false;
};

TEST(Lease, ReportsAFailedStoreAtTheNextLease) {
  const Shard shard = ones_in(std::make_shared<FullStore>());
  EXPECT_THROW(shard.add_state(at::zeros({4})), Error);
  shard.lease()->gradients = at::full({4}, 2);
  EXPECT_THROW(shard.lease(), Error);
  EXPECT_EQ(shard.lease()->gradients.sum().item<double>(), 8) << "it is not lost";
}

}  // namespace
}  // namespace colossal::memory::shard_test
