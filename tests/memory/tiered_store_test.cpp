// Tensors that take more bytes than the host's budget: their values are right, the budget holds, and as few bytes are
// moved as the order of uses allows.
#include "colossal/memory/tiers/tiered_store.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <random>

#include "colossal/base/error.h"
#include "memory/shaped_file.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::memory::tiered_store_test {
namespace {

constexpr int64_t kNumel = 1024, kBytes = 4 * kNumel;  // size of a tensor: a block of the disk

struct Memory {
  Memory(int64_t tensors_in_host, const std::string& policy, double ahead, bool has_disk = true)
      : budget(tensors_in_host * kBytes),
        store({.host_bytes = budget,
               .disk = has_disk ? std::make_shared<DiskSpace>(folder.path()) : nullptr,
               .eviction_policy = make_eviction_policy(policy),
               .ahead = ahead}) {}
  void add(int64_t count) {
    for (int64_t i = 0; i < count; ++i) offloaded.push_back(store.offload(at::full({kNumel}, i, at::kFloat)));
  }
  /// Uses a tensor once; adds 1 to it if `writes` is set.
  void use(size_t number, bool writes) {
    const at::Tensor tensor = offloaded[number]->borrow();
    if (writes) tensor.add_(1);
    offloaded[number]->return_borrowed(tensor, writes);
  }
  test::TemporaryFolder folder;
  int64_t budget;
  TieredStore store;
  std::vector<std::unique_ptr<OffloadedTensor>> offloaded;
};

/// Makes the same calls with tensors of `device`: more tensors than fit, used in one order in each of three steps.
TieredStore::Counts counts_of(at::Device device, const std::string& policy, double ahead) {
  const test::TemporaryFolder folder;
  const auto disk = device.is_meta() ? std::make_shared<DiskSpace>(make_unwritten_file("nowhere"), DiskOptions{})
                                     : std::make_shared<DiskSpace>(folder.path());
  TieredStore store({.host_bytes = 4 * kBytes,
                     .disk = disk,
                     .eviction_policy = make_eviction_policy(policy),
                     .ahead = ahead,
                     .device = device});
  std::vector<std::unique_ptr<OffloadedTensor>> all;
  for (int i = 0; i < 8; ++i) all.push_back(store.offload(at::zeros({kNumel}, at::device(device).dtype(at::kFloat))));
  for (int step = 0; step < 3; ++step) {
    store.begin_step();
    for (size_t i = 0; i < all.size(); ++i) {
      const at::Tensor tensor = all[i]->borrow();
      EXPECT_EQ(tensor.device(), device);
      all[i]->return_borrowed(tensor, i % 2 == 0);
    }
    store.end_step();
  }
  EXPECT_EQ(disk->counts().bytes_written, store.counts().bytes_written);
  return store.counts();
}

// Without reading ahead all transfers follow from the calls. Nothing is on a disk, and nothing is in memory.
TEST(TieredStore, MovesShapesAsTensors) {
  for (const char* policy : {"auto", "lru", "static"}) {
    const TieredStore::Counts real = counts_of(at::kCPU, policy, 0), shapes = counts_of(at::kMeta, policy, 0);
    EXPECT_GT(real.bytes_read, 0) << policy;
    EXPECT_EQ(shapes.bytes_read, real.bytes_read) << policy;
    EXPECT_EQ(shapes.bytes_written, real.bytes_written) << policy;
    EXPECT_EQ(shapes.bytes_given, real.bytes_given) << policy;
    EXPECT_EQ(shapes.evictions, real.evictions) << policy;
    EXPECT_EQ(shapes.peak_host_bytes, real.peak_host_bytes) << policy;
  }
  EXPECT_GT(counts_of(at::kMeta, "auto", 0.5).reads_ahead, 0);
  EXPECT_FALSE(std::filesystem::exists("nowhere"));
}

// The copy fails, not the disk: no tensor remains borrowed, and the next copy works.
TEST(TieredStore, ReturnsTheTensorAfterAFailedCopy) {
  Memory s(1, "auto", 0);
  s.add(2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(s.offloaded[0]->copy_to(at::empty({kNumel + 1})), c10::Error);
    EXPECT_THROW(s.offloaded[1]->copy_to(at::empty({kNumel + 1})), c10::Error)
        << "for which the first one has to leave";
  }
  at::Tensor copy = at::empty({kNumel});
  s.offloaded[0]->copy_to(copy);
  EXPECT_TRUE(at::equal(copy, at::zeros({kNumel})));
  const std::unique_ptr<OffloadedTensor> here = InPlace().offload(at::ones({3}));
  EXPECT_THROW(here->copy_to(at::empty({2})), c10::Error);
  EXPECT_TRUE(at::equal(here->borrow(), at::ones({3})));
}

/// Returns a size of one block or two.
int64_t numel_of(size_t number) { return number % 3 == 0 ? kNumel + 5 : kNumel; }

// For any policy and any reading ahead, every value is the one that was written last.
TEST(TieredStore, KeepsValuesWithinItsBudgetUnderRandomUses) {
  for (const std::string& policy : eviction_policy_names())
    for (const double ahead : {0.0, 0.5}) {
      Memory s(4, policy, ahead);
      for (int64_t i = 0; i < 12; ++i) s.offloaded.push_back(s.store.offload(at::full({numel_of(i)}, i, at::kFloat)));
      std::vector<double> want(12);
      for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<double>(i);
      std::vector<bool> forgotten(12, false);
      std::mt19937 random(7);
      for (int step = 0; step < 20; ++step) {
        std::mt19937 order(step < 12 ? 1 : 2);  // equal steps at first, then others
        s.store.begin_step();
        for (int use = 0; use < 40; ++use) {
          const size_t number = order() % want.size();
          if (forgotten[number] || order() % 9 == 0) {
            s.offloaded[number]->replace(at::full({numel_of(number)}, step, at::kFloat));
            want[number] = step, forgotten[number] = false;
          } else if (order() % 11 == 0) {
            s.offloaded[number]->discard();
            forgotten[number] = true;
          } else {
            const at::Tensor tensor = s.offloaded[number]->borrow();
            ASSERT_EQ(tensor.min().item<double>(), want[number]) << policy << ", step " << step;
            ASSERT_EQ(tensor.max().item<double>(), want[number]);
            const bool writes = random() % 2 == 0;
            if (writes) tensor.fill_(++want[number]);
            if (random() % 5 == 0) s.offloaded[(number + 1) % want.size()]->prefetch();
            s.offloaded[number]->return_borrowed(tensor, writes);
          }
          ASSERT_LE(s.store.counts().peak_host_bytes, s.budget) << policy;
        }
        s.store.end_step();
      }
      EXPECT_GT(s.store.counts().evictions, 0);
    }
}

/// Returns the reads of a memory of `room` tensors under `uses`, repeated. It always evicts the tensor whose next use
/// is the farthest, which no order beats.
int64_t fewest_reads(const std::vector<size_t>& uses, size_t room, int rounds) {
  std::vector<size_t> all;
  for (int round = 0; round < rounds; ++round) all.insert(all.end(), uses.begin(), uses.end());
  std::vector<size_t> held;
  int64_t reads = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::find(held.begin(), held.end(), all[i]) != held.end()) continue;
    ++reads;
    if (held.size() == room) {
      const auto again = [&](size_t number) {
        return std::find(all.begin() + static_cast<std::ptrdiff_t>(i), all.end(), number) - all.begin();
      };
      held.erase(std::max_element(held.begin(), held.end(), [&](size_t a, size_t b) { return again(a) < again(b); }));
    }
    held.push_back(all[i]);
  }
  return reads;
}

// The uses of a training step: forward and backward through ten chunks, then each chunk with two states.
std::vector<size_t> training_uses() {
  std::vector<size_t> uses;
  for (size_t i = 0; i < 10; ++i) uses.push_back(i);
  for (size_t i = 10; i-- > 0;) uses.push_back(i);
  for (size_t i = 0; i < 10; ++i)
    for (const size_t number : {i, 10 + i, 20 + i}) uses.push_back(number);
  return uses;
}

/// Returns the tensors read by `steps` steps after the order is known.
int64_t reads_of(const std::string& policy, double ahead, int64_t room, int steps) {
  Memory s(room, policy, ahead);
  s.add(30);
  int64_t before = 0;
  for (int step = 0; step < 2 + steps; ++step) {
    if (step == 2) before = s.store.counts().reads;
    s.store.begin_step();
    for (const size_t number : training_uses()) s.use(number, false);
    s.store.end_step();
  }
  return s.store.counts().reads - before;
}

TEST(TieredStore, ReadsAsOftenAsTheOfflineOptimumAndNoMoreThanLeastRecentlyUsed) {
  constexpr int kSteps = 20;
  for (const int64_t room : {3, 7, 15, 28}) {
    const int64_t best = fewest_reads(training_uses(), static_cast<size_t>(room), kSteps);
    const int64_t own = reads_of("auto", 0, room, kSteps);
    // The tensors in memory at the beginning and at the end differ: each of these costs at most one read.
    EXPECT_LE(own, best + room) << room;
    EXPECT_GE(own, best - room) << room;
    for (const char* other : {"lru", "static"}) EXPECT_LE(own, kSteps / 5 * reads_of(other, 0, room, 5)) << room;
    EXPECT_LE(reads_of("auto", 0.3, room, 5), reads_of("lru", 0, room, 5)) << room;
  }
}

// With room for one tensor, each use of another tensor than before is a read, and each change is a write.
TEST(TieredStore, ReadsEveryUseAndWritesEveryChangeWithoutRoom) {
  const std::vector<size_t> uses = training_uses();
  const auto changes = [](size_t use) { return use >= 20; };  // the update
  int64_t reads = 0, writes = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    // The last chunk of forward is the first one of backward, and the last one of backward is the first one of the
    // update.
    reads += i == 0 || uses[i] != uses[i - 1];
    writes += changes(i);
  }
  ASSERT_EQ(reads, 48);
  ASSERT_EQ(writes, 30);
  for (const std::string& policy : eviction_policy_names()) {
    Memory s(1, policy, 0);
    s.add(30);
    TieredStore::Counts before;
    for (int step = 0; step < 4; ++step) {
      if (step == 1) before = s.store.counts();
      s.store.begin_step();
      for (size_t i = 0; i < uses.size(); ++i) s.use(uses[i], changes(i));
      s.store.end_step();
    }
    EXPECT_EQ(s.store.counts().bytes_read - before.bytes_read, 3 * reads * kBytes) << policy;
    EXPECT_EQ(s.store.counts().bytes_written - before.bytes_written, 3 * writes * kBytes) << policy;
  }
}

/// Counts the keys of another policy.
struct CountedPolicy final : EvictionPolicy {
  explicit CountedPolicy(int64_t& keys) : keys(keys) {}
  Key key(const Candidate& candidate) const override {
    ++keys;
    return policy->key(candidate);
  }
  std::unique_ptr<EvictionPolicy> policy = make_eviction_policy("auto");
  int64_t& keys;
};

TEST(TieredStore, ComputesFewKeysPerUse) {
  for (const int64_t tensors : {16, 160}) {
    test::TemporaryFolder folder;
    int64_t keys = 0;
    TieredStore store({.host_bytes = tensors / 2 * kBytes,
                       .disk = std::make_shared<DiskSpace>(folder.path()),
                       .eviction_policy = std::make_unique<CountedPolicy>(keys)});
    std::vector<std::unique_ptr<OffloadedTensor>> offloaded;
    for (int64_t i = 0; i < tensors; ++i) offloaded.push_back(store.offload(at::full({kNumel}, i, at::kFloat)));
    for (int step = 0; step < 3; ++step) {
      keys = 0;
      store.begin_step();
      for (const auto& one : offloaded) one->return_borrowed(one->borrow(), false);
      store.end_step();
    }
    // A key is computed at the use, when the tensor is loaded and when it is returned, and if an eviction is cancelled.
    EXPECT_LE(keys, 4 * tensors);
    EXPECT_GE(keys, tensors);
  }
}

TEST(TieredStore, ReadsAheadOfUse) {
  Memory s(10, "auto", 0.3);
  s.add(30);
  for (int step = 0; step < 6; ++step) {
    s.store.begin_step();
    for (const size_t number : training_uses()) s.use(number, false);
    s.store.end_step();
  }
  const TieredStore::Counts counts = s.store.counts();
  EXPECT_GT(counts.reads, 0);
  EXPECT_GE(counts.reads_ahead * 6, counts.reads * 4) << "all but those of the first step, and some of the second";
}

// The first step of a run differs from the second one, because chunks are gathered early only from the second step on.
TEST(TieredStore, ReadsAheadInASlightlyDifferentSecondStep) {
  Memory s(10, "auto", 0.3);
  s.add(30);
  std::vector<size_t> uses = training_uses();
  const auto run_step = [&] {
    s.store.begin_step();
    for (const size_t number : uses) s.use(number, false);
    s.store.end_step();
  };
  uses.insert(uses.begin() + 5, 29);
  run_step();
  const TieredStore::Counts first = s.store.counts();
  uses.erase(uses.begin() + 5);
  run_step();
  const TieredStore::Counts second = s.store.counts();
  EXPECT_GT(second.reads, first.reads);
  EXPECT_GE((second.reads_ahead - first.reads_ahead) * 6, (second.reads - first.reads) * 4);
}

// Each step stores inputs that end with it. In the first step other tensors are stored between them, and remain.
TEST(TieredStore, NumbersTensorsEquallyInEachStep) {
  Memory s(30, "auto", 0.3);
  std::vector<size_t> numbers[2];
  for (std::vector<size_t>& of_step : numbers) {
    const bool is_first = s.offloaded.empty();
    s.store.begin_record();
    s.store.begin_step();
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<std::unique_ptr<OffloadedTensor>> inputs;
      for (int i = 0; i < 3; ++i) inputs.push_back(s.store.offload(at::ones({kNumel})));
      while (!inputs.empty()) {
        inputs.pop_back();
        if (is_first && pass == 0) s.add(1);  // gradients, which remain
      }
    }
    s.store.end_step();
    for (const TierEvent& event : s.store.end_record())
      if (event.kind == TierEvent::Kind::Gone) of_step.push_back(event.number);
  }
  EXPECT_EQ(numbers[0], numbers[1]);
}

TEST(TieredStore, MovesNothingIfAllTensorsFit) {
  Memory s(30, "auto", 0.3);
  s.add(30);
  for (int step = 0; step < 3; ++step) {
    s.store.begin_step();
    for (const size_t number : training_uses()) s.use(number, true);
    s.store.end_step();
  }
  EXPECT_EQ(s.store.counts().bytes_read + s.store.counts().bytes_written, 0);
  EXPECT_EQ(s.store.counts().host_bytes, 30 * kBytes);
  EXPECT_EQ(s.store.counts().disk_bytes, 0);
}

// A tensor that was not changed is on the disk already.
TEST(TieredStore, WritesUnchangedTensorsOnce) {
  Memory s(3, "auto", 0);
  s.add(6);
  for (int step = 0; step < 5; ++step)
    for (size_t number = 0; number < 6; ++number) s.use(number, false);
  EXPECT_LE(s.store.counts().bytes_written, 6 * kBytes);
  EXPECT_GT(s.store.counts().bytes_read, 6 * kBytes);
}

TEST(TieredStore, RefusesABudgetSmallerThanTheTensorsInUse) {
  Memory s(2, "auto", 0);
  s.add(3);
  const at::Tensor first = s.offloaded[0]->borrow(), second = s.offloaded[1]->borrow();
  EXPECT_THAT(test::thrown_message([&] { s.offloaded[2]->borrow(); }),
              testing::EndsWith("memory.host = \"8KiB\" is too small: 8.0 KiB are in use at once and 4.0 KiB more are "
                                "needed; at least \"12KiB\" works here"));
  s.offloaded[0]->return_borrowed(first, false);
  EXPECT_EQ(s.offloaded[2]->borrow().max().item<double>(), 2) << "nothing is lost";
}

/// Three tensors, with host memory for two, and a disk whose requests `shape` carries out.
struct FaultyMemory {
  explicit FaultyMemory(std::function<void(BlockRequest, BlockFile&)> shape) : shape(std::move(shape)) {}
  void add() {
    offloaded.push_back(store.offload(at::full({kNumel}, static_cast<double>(offloaded.size()), at::kFloat)));
  }
  test::TemporaryFolder folder;
  ShapedFile* file = new ShapedFile(folder.path());
  std::function<void(BlockRequest, BlockFile&)> shape;
  std::shared_ptr<DiskSpace> disk = std::make_shared<DiskSpace>(std::unique_ptr<BlockFile>(file), DiskOptions{});
  TieredStore store{{.host_bytes = 2 * kBytes, .disk = disk, .ahead = 0}};
  std::vector<std::unique_ptr<OffloadedTensor>> offloaded;
  void begin_to_fail() {
    file->shape = [this](BlockRequest request) { shape(std::move(request), *file->file); };
  }
};

TEST(TieredStore, KeepsItsTensorsAfterADiskError) {
  FaultyMemory s([](const BlockRequest& request, BlockFile&) { request.done(-EIO); });
  s.add(), s.add();
  s.begin_to_fail();
  EXPECT_THAT(test::thrown_message([&] { s.add(); }), testing::HasSubstr("[disk]")) << "what has to leave cannot";
  EXPECT_EQ(s.offloaded.size(), 2u);
  for (const size_t i : {0, 1}) {
    const at::Tensor tensor = s.offloaded[i]->borrow();
    EXPECT_EQ(tensor.max().item<double>(), static_cast<double>(i)) << "what could not leave is still here";
    s.offloaded[i]->return_borrowed(tensor, false);
  }
  s.file->shape = nullptr;
  s.add();  // the disk works again
  EXPECT_EQ(s.offloaded[2]->borrow().max().item<double>(), 2);
}

TEST(TieredStore, ReportsCorruptedBytes) {
  FaultyMemory s([](BlockRequest request, BlockFile& file) {
    request.done = [done = std::move(request.done), memory = request.memory](int64_t result) {
      memory[7] ^= 1;
      done(result);
    };
    file.begin(std::move(request));
  });
  for (int i = 0; i < 3; ++i) s.add();
  s.begin_to_fail();
  const auto read_all = [&] {
    for (const auto& offloaded : s.offloaded) offloaded->return_borrowed(offloaded->borrow(), false);
  };
  EXPECT_THAT(test::thrown_message(read_all), testing::HasSubstr("[disk]")) << "one of the three is on the disk alone";
}

TEST(TieredStore, KeepsNoPartialTensorOnAFullDisk) {
  FaultyMemory s({});
  s.file->room = 0;
  s.add(), s.add();
  EXPECT_THAT(test::thrown_message([&] { s.add(); }), testing::HasSubstr("No space left"));
  EXPECT_EQ(s.store.counts().host_bytes, 2 * kBytes) << "the one that was refused takes nothing";
  s.file->room = int64_t{1} << 30;
  s.add();
  EXPECT_EQ(s.offloaded[2]->borrow().max().item<double>(), 2);
}

TEST(TieredStore, RefusesTensorsThatDoNotFitWithoutADisk) {
  Memory s(2, "auto", 0, /*has_disk=*/false);
  s.add(2);
  EXPECT_THAT(test::thrown_message([&] { s.add(1); }), testing::HasSubstr("or a folder for the rest (memory.disk)"));
  EXPECT_EQ(s.offloaded[1]->borrow().max().item<double>(), 1);
}

TEST(TieredStore, StoresTensorsOfAnyShapeAndType) {
  Memory s(3, "lru", 0);
  std::vector<at::Tensor> want;
  for (const auto& [type, numel] : std::vector<std::pair<at::ScalarType, int64_t>>{{at::kBFloat16, 700},
                                                                                   {at::kByte, 1},
                                                                                   {at::kDouble, 513},
                                                                                   {at::kFloat, 0},
                                                                                   {at::kLong, 7},
                                                                                   {at::kFloat, 1025}}) {
    want.push_back(at::arange(numel).to(type));
    s.offloaded.push_back(s.store.offload(want.back().clone()));
  }
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < want.size(); ++i) {
      const at::Tensor got = s.offloaded[i]->borrow();
      EXPECT_EQ(got.dtype(), want[i].dtype());
      EXPECT_TRUE(at::equal(got, want[i])) << i;
      s.offloaded[i]->return_borrowed(got, false);
    }
}

}  // namespace
}  // namespace colossal::memory::tiered_store_test
