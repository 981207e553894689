// Random legal calls of an offload store, by one thread or several. Values equal a model in plain memory, counts add
// up, the budget holds at every moment, and the disk is empty at the end.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "colossal/memory/shard.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "support/temporary_folder.h"

namespace colossal::memory::tiers_fuzz_test {
namespace {

constexpr int64_t kBlockNumel = kBlock / 4;  // tensors are multiples of a block, so their sizes equal their memory

struct Setting {
  std::string policy;
  int64_t blocks;  // blocks of host memory
  double ahead;
};

/// Returns the setting of a seed.
Setting setting_of(unsigned seed) {
  const std::vector<std::string> names = eviction_policy_names();
  return {names[seed % names.size()], 9 + seed / 3 % 3 * 6, seed % 2 ? 0.3 : 0};
}

struct Tiers {
  explicit Tiers(const Setting& setting)
      : budget(setting.blocks * kBlock),
        store(
            std::make_shared<TieredStore>(TieredStore::Options{.host_bytes = budget,
                                                               .disk = disk,
                                                               .eviction_policy = make_eviction_policy(setting.policy),
                                                               .ahead = setting.ahead})) {}
  test::TemporaryFolder folder;
  std::shared_ptr<DiskSpace> disk = std::make_shared<DiskSpace>(folder.path());
  int64_t budget;
  std::shared_ptr<TieredStore> store;
};

/// Tensors of one value each in a store, and a model of their values.
class Player {
 public:
  Player(OffloadStore& store, unsigned seed, int64_t max_borrowed)
      : store_(store), random_(seed), max_borrowed_(max_borrowed) {}

  /// Makes one legal call, or two.
  void play() {
    const size_t places = 24, place = random_() % places;
    if (tensors_.size() < places && random_() % 4 == 0) return offload();
    if (place >= tensors_.size()) return;
    auto it = std::next(tensors_.begin(), static_cast<std::ptrdiff_t>(place));
    Tensor& tensor = *it;
    const auto what = random_() % 12;
    if (what == 0) {
      borrowed_blocks_ -= tensor.borrowed.defined() ? tensor.blocks : 0;
      tensors_.erase(it);  // destroyed even if it is borrowed
    } else if (what < 3) {
      tensor.offloaded->prefetch();
    } else if (tensor.borrowed.defined()) {
      return_borrowed(tensor);
    } else if (what == 3) {
      tensor.offloaded->discard();
      tensor.value.reset();
    } else if (what == 4 || !tensor.value) {
      replace(tensor);
    } else if (borrowed_blocks_ + tensor.blocks <= max_borrowed_) {
      borrow(tensor);
      if (what < 10) return_borrowed(tensor);
    }
  }

  int64_t bytes_with_values() const {
    int64_t bytes = 0;
    for (const Tensor& tensor : tensors_) bytes += tensor.value ? tensor.blocks * kBlock : 0;
    return bytes;
  }
  void return_all() {
    for (Tensor& tensor : tensors_)
      if (tensor.borrowed.defined()) return_borrowed(tensor);
  }

 private:
  struct Tensor {
    std::unique_ptr<OffloadedTensor> offloaded;
    int64_t blocks;
    std::optional<double> value;
    at::Tensor borrowed{};
  };

  at::Tensor made(int64_t blocks, double value) const { return at::full({blocks * kBlockNumel}, value, at::kFloat); }

  void offload() {
    const int64_t blocks = 1 + static_cast<int64_t>(random_() % 3);
    const double value = static_cast<double>(random_() % 1000);
    tensors_.push_back({store_.offload(made(blocks, value)), blocks, value});
  }
  void replace(Tensor& tensor) {
    tensor.value = static_cast<double>(random_() % 1000);
    tensor.offloaded->replace(made(tensor.blocks, *tensor.value));
  }
  void borrow(Tensor& tensor) {
    tensor.borrowed = tensor.offloaded->borrow();
    borrowed_blocks_ += tensor.blocks;
    ASSERT_EQ(tensor.borrowed.numel(), tensor.blocks * kBlockNumel);
    ASSERT_EQ(tensor.borrowed.min().item<double>(), *tensor.value);
    ASSERT_EQ(tensor.borrowed.max().item<double>(), *tensor.value);
  }
  void return_borrowed(Tensor& tensor) {
    const bool changes = random_() % 2 == 0;
    if (changes) tensor.borrowed.fill_(++*tensor.value);
    tensor.offloaded->return_borrowed(tensor.borrowed, changes);
    tensor.borrowed.reset();
    borrowed_blocks_ -= tensor.blocks;
  }

  OffloadStore& store_;
  std::mt19937 random_;
  int64_t max_borrowed_, borrowed_blocks_ = 0;
  std::list<Tensor> tensors_;
};

/// Bytes in host memory according to the recorded events.
struct Residents {
  void add(const std::vector<TierEvent>& events) {
    for (const TierEvent& event : events) switch (event.kind) {
        case TierEvent::Kind::Set:
          there.emplace(event.number, event.bytes);
          break;
        case TierEvent::Kind::Read:
          EXPECT_TRUE(there.emplace(event.number, event.bytes).second) << "it is there already";
          break;
        case TierEvent::Kind::Leave:
          EXPECT_EQ(there.erase(event.number), 1u) << "it is not there";
          break;
        case TierEvent::Kind::Gone:
          EXPECT_EQ(there.count(event.number), 0u);
          break;
        default:
          EXPECT_EQ(there.count(event.number), 1u) << "somebody works with what is not there";
      }
  }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [number, bytes] : there) sum += bytes;
    return sum;
  }
  std::map<size_t, int64_t> there;
};

int64_t bytes_of(TierEvent::Kind kind, const std::vector<TierEvent>& events) {
  int64_t sum = 0;
  for (const TierEvent& event : events) sum += event.kind == kind ? event.bytes : 0;
  return sum;
}

TEST(TiersFuzz, KeepsValuesAndBudgetUnderRandomCalls) {
  int64_t moved = 0;
  for (unsigned seed = 0; seed < 36; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Setting setting = setting_of(seed);
    Tiers tiers(setting);
    tiers.store->begin_record();
    {
      Player player(*tiers.store, seed, setting.blocks - 3);
      std::mt19937 random(seed + 1000);
      for (int call = 0; call < 120; ++call) {
        if (random() % 25 == 0) tiers.store->begin_step();
        if (random() % 25 == 0) tiers.store->end_step();
        player.play();
        if (testing::Test::HasFailure()) return;
        const TieredStore::Counts counts = tiers.store->counts();
        ASSERT_LE(counts.peak_host_bytes, tiers.budget);
        ASSERT_EQ(counts.host_bytes + counts.disk_bytes, player.bytes_with_values()) << "after " << call << " calls";
        ASSERT_GE(counts.reads, counts.reads_ahead);
      }
      player.return_all();
      moved += tiers.store->counts().bytes_read;
    }
    const std::vector<TierEvent> events = tiers.store->end_record();
    Residents residents;
    residents.add(events);
    const TieredStore::Counts counts = tiers.store->counts();
    EXPECT_EQ(residents.bytes(), 0) << "what is recorded is what happens";
    EXPECT_EQ(bytes_of(TierEvent::Kind::Read, events), counts.bytes_read);
    EXPECT_EQ(bytes_of(TierEvent::Kind::Write, events), counts.bytes_written);
    EXPECT_EQ(counts.host_bytes + counts.disk_bytes, 0);
    EXPECT_EQ(tiers.disk->counts().used_bytes, 0) << "nothing is left on the disk";
  }
  EXPECT_GT(moved, 1000 * kBlock) << "or this tested nothing";
}

TEST(TiersFuzz, ServesSeveralThreads) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    constexpr unsigned kThreads = 3;
    const Setting setting = setting_of(seed);
    Tiers tiers(setting);
    tiers.store->begin_record();
    std::vector<std::thread> threads;
    // Each thread may have two blocks borrowed; a call needs room for three at most.
    for (unsigned thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([&, thread] {
        Player player(*tiers.store, seed * kThreads + thread, (setting.blocks - 3) / kThreads);
        for (int call = 0; call < 150 && !testing::Test::HasFailure(); ++call) player.play();
        player.return_all();
      });
    std::mt19937 random(seed);
    for (int step = 0; step < 20; ++step) {
      tiers.store->begin_step();
      EXPECT_LE(tiers.store->counts().peak_host_bytes, tiers.budget);
      std::this_thread::yield();
      tiers.store->end_step();
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(tiers.store->counts().peak_host_bytes, tiers.budget);
    const std::vector<TierEvent> events = tiers.store->end_record();
    Residents residents;
    residents.add(events);
    const TieredStore::Counts counts = tiers.store->counts();
    EXPECT_EQ(residents.bytes(), 0) << "what is recorded is what happens";
    EXPECT_EQ(bytes_of(TierEvent::Kind::Read, events), counts.bytes_read);
    EXPECT_EQ(bytes_of(TierEvent::Kind::Write, events), counts.bytes_written);
    EXPECT_EQ(counts.host_bytes + counts.disk_bytes, 0);
    EXPECT_EQ(tiers.disk->counts().used_bytes, 0);
  }
}

/// A shard and a model of its values.
struct Modelled {
  Shard shard;
  double values;
  std::vector<double> states{};
  std::optional<double> gradients{};
};

double value_of(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.min().item<double>(), tensor.max().item<double>());
  return tensor.min().item<double>();
}

Access any_access(std::mt19937& random) { return static_cast<Access>(random() % 3); }

/// Leases random tensors: the borrowed values are right, and what the lease may write remains in the shard.
void lease_and_change(Modelled& one, std::mt19937& random) {
  Needs needs{any_access(random), any_access(random), any_access(random)};
  if (random() % 2) needs.places = {random() % 3, random() % 3};
  if (random() % 2) one.shard.prefetch(needs);
  const Lease lease = one.shard.lease(needs);
  const auto meet = [](Access access, at::Tensor& tensor, double& value) {
    if (access == Access::None) return;
    ASSERT_EQ(value_of(tensor), value);
    if (access == Access::Write) tensor.fill_(++value);
  };
  meet(needs.values, lease->values, one.values);
  for (size_t i = 0; i < one.states.size(); ++i)
    if (i >= needs.places.first && i < needs.places.end) meet(needs.states, lease->states[i], one.states[i]);
  if (one.gradients) {
    meet(needs.gradients, lease->gradients, *one.gradients);
  } else if (needs.gradients == Access::Write) {
    one.gradients = static_cast<double>(random() % 1000);
    lease->gradients = at::full({one.shard.length()}, *one.gradients, at::kFloat);
  }
}

TEST(TiersFuzz, KeepsShardsEqualToAModel) {
  int64_t evictions = 0;
  for (unsigned seed = 0; seed < 18; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Setting setting = setting_of(seed);
    setting.blocks = 12 + seed % 9;  // room for three states, values, gradients and new gradients of two blocks
    Tiers tiers(setting);
    {
      std::mt19937 random(seed);
      std::vector<Modelled> shards;
      for (int i = 0; i < 5; ++i)
        shards.push_back(
            {Shard(Shard::Parts::of(at::full({(1 + i % 2) * kBlockNumel}, i, at::kFloat), tiers.store), {}),
             static_cast<double>(i)});
      for (int call = 0; call < 60; ++call) {
        Modelled& one = shards[random() % shards.size()];
        const auto what = random() % 8;
        if (what == 0 && one.states.size() < 3) {
          one.states.push_back(static_cast<double>(random() % 100));
          one.shard.add_state(at::full({one.shard.length()}, one.states.back(), at::kFloat));
        } else if (what == 1) {
          one.shard.drop_gradients();
          one.gradients.reset();
        } else {
          lease_and_change(one, random);
        }
        if (testing::Test::HasFailure()) return;
        ASSERT_LE(tiers.store->counts().peak_host_bytes, tiers.budget);
      }
      for (Modelled& one : shards) {
        const Lease lease = one.shard.lease();
        EXPECT_EQ(value_of(lease->values), one.values);
        EXPECT_EQ(lease->gradients.defined(), one.gradients.has_value());
      }
      evictions += tiers.store->counts().evictions;
    }
    EXPECT_EQ(tiers.disk->counts().used_bytes, 0);
  }
  EXPECT_GT(evictions, 200) << "or this tested nothing";
}

}  // namespace
}  // namespace colossal::memory::tiers_fuzz_test
