// Evictions from host memory during training, with the order of uses of real steps. With "auto" they are as many as
// with an offline Belady algorithm over the end of the step, implemented here independently. They are never more than
// with "lru".
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "colossal/memory/tiers/offline_optimum.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "support/temporary_folder.h"
#include "train/zero_runs.h"

namespace colossal::train::tier_evictions_test {
namespace {

using memory::TierEvent;
using Kind = TierEvent::Kind;

constexpr int64_t kBytes = memory::kBlock;

/// Returns the uses of tensors in a step of GPT-2 small. Layers are narrower here, but as many; a chunk has about one
/// layer.
std::vector<TierEvent> uses_of_gpt2_small(const std::string& recompute) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 12;
  run::Config config = config_of({});
  config.parallel.chunk_mib = 0.02;
  config.memory.recompute = recompute;
  config.memory.host = 1 << 20;
  test::TemporaryFolder folder;
  config.memory.disk = folder.path();
  std::vector<TierEvent> events;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    for (int64_t step = 0; step < 3; ++step) {  // the first two differ from later ones, because states are new
      engine->tiers()->begin_record();
      test::train_step(*engine, step, kText);
      events = engine->tiers()->end_record();
    }
  });
  std::erase_if(events, [](const TierEvent& event) { return event.kind >= Kind::Read; });
  return events;
}

/// Replays the uses in `pass` on one-block tensors in an offload store, and measures each replay.
class Replay {
 public:
  Replay(const std::vector<TierEvent>& pass, const std::string& policy, int64_t room)
      : pass_(pass),
        store_({.host_bytes = room * kBytes,
                .disk = std::make_shared<memory::DiskSpace>(folder_.path()),
                .eviction_policy = memory::make_eviction_policy(policy),
                .ahead = 0}) {
    store_.begin_record();
    std::map<size_t, size_t> numbers;  // numbers in this store follow the order of creation
    for (TierEvent& event : pass_) {
      const auto [place, is_new] = numbers.emplace(event.number, offloaded_.size());
      event.number = place->second, event.bytes = kBytes;
      if (is_new) offloaded_.push_back(store_.offload(tensor_));
    }
    borrowed_.resize(offloaded_.size());
  }

  struct Moved {
    int64_t evictions, reads;
  };
  Moved run_pass() {
    const memory::TieredStore::Counts before = store_.counts();
    store_.begin_step();
    for (const TierEvent& event : pass_) carry_out(event);
    store_.end_step();
    return {store_.counts().evictions - before.evictions, store_.counts().reads - before.reads};
  }

  const std::vector<TierEvent>& pass() const { return pass_; }

  /// Returns the numbers of the tensors in host memory.
  std::set<size_t> residents() {
    for (const TierEvent& event : store_.end_record()) {
      if (event.kind == Kind::Set || event.kind == Kind::Read) here_.insert(event.number);
      if (event.kind == Kind::Leave) here_.erase(event.number);
    }
    store_.begin_record();
    return here_;
  }

 private:
  void carry_out(const TierEvent& event) {
    memory::OffloadedTensor& offloaded = *offloaded_[event.number];
    at::Tensor& borrowed = borrowed_[event.number];
    switch (event.kind) {
      case Kind::Set:
        return offloaded.replace(tensor_);
      case Kind::Borrow:
        borrowed = offloaded.borrow();
        return;
      case Kind::Gone:
        return offloaded.discard();
      default:
        return offloaded.return_borrowed(std::exchange(borrowed, {}), event.kind == Kind::Change);
    }
  }

  test::TemporaryFolder folder_;
  at::Tensor tensor_ = at::zeros({kBytes / 4});
  std::vector<TierEvent> pass_;
  memory::TieredStore store_;
  std::vector<std::unique_ptr<memory::OffloadedTensor>> offloaded_;
  std::vector<at::Tensor> borrowed_;
  std::set<size_t> here_;
};

/// Returns the evictions in each of `passes` passes. The first pass starts with the tensors `here` in a host memory of
/// `room` tensors. Each time the unborrowed tensor with the latest next use is evicted; the search continues at the
/// start of the pass.
std::vector<int64_t> belady(const std::vector<TierEvent>& pass, std::set<size_t> here, size_t room, int passes) {
  const auto is_use = [](const TierEvent& event) { return event.kind == Kind::Set || event.kind == Kind::Borrow; };
  std::vector<int64_t> result;
  std::set<size_t> borrowed;
  for (int round = 0; round < passes; ++round) {
    int64_t left = 0;
    for (size_t i = 0; i < pass.size(); ++i) {
      const size_t number = pass[i].number;
      if (pass[i].kind == Kind::Gone) here.erase(number);
      if (pass[i].kind == Kind::Return || pass[i].kind == Kind::Change) borrowed.erase(number);
      if (!is_use(pass[i])) continue;
      while (here.count(number) == 0 && here.size() >= room) {
        size_t last = 0, farthest = 0;
        for (const size_t other : here) {
          if (borrowed.count(other)) continue;
          size_t next = 1;
          while (!(pass[(i + next) % pass.size()].number == other && is_use(pass[(i + next) % pass.size()]))) ++next;
          if (next > farthest) farthest = next, last = other;
        }
        here.erase(last);
        ++left;
      }
      here.insert(number);
      if (pass[i].kind == Kind::Borrow) borrowed.insert(number);
    }
    result.push_back(left);
  }
  return result;
}

TEST(TierEvictions, EqualOfflineBeladyAndNeverExceedLru) {
  for (const char* recompute : {"none", "block"}) {
    const std::vector<TierEvent> pass = uses_of_gpt2_small(recompute);
    std::set<size_t> tensors;
    for (const TierEvent& event : pass) tensors.insert(event.number);
    ASSERT_GT(tensors.size(), 40u);
    for (const size_t share : {4, 2}) {
      constexpr int kPasses = 3;
      const size_t room = tensors.size() / share;
      Replay own(pass, "auto", static_cast<int64_t>(room)), lru(pass, "lru", static_cast<int64_t>(room));
      for (int i = 0; i < 2; ++i) own.run_pass(), lru.run_pass();  // the first pass has no predictions
      const std::vector<int64_t> want = belady(own.pass(), own.residents(), room, kPasses);
      int64_t reads = 0;
      for (const int64_t evictions : want) {
        const Replay::Moved got = own.run_pass(), others = lru.run_pass();
        EXPECT_EQ(got.evictions, evictions) << recompute << ", room for " << room << " of " << tensors.size();
        EXPECT_LE(got.evictions, others.evictions);
        EXPECT_LE(got.reads, others.reads);
        EXPECT_GT(got.evictions, 0);
        reads += got.reads;
      }
      int64_t least = 0;
      const auto optimum = memory::offline_optimum(own.pass(), static_cast<int64_t>(room) * kBytes, 2 + kPasses);
      for (int i = 2; i < 2 + kPasses; ++i) least += optimum[static_cast<size_t>(i)].bytes_read / kBytes;
      // The bound starts with an empty host and may evict borrowed tensors. Each tensor that is in the host at the
      // start saves at most one read.
      EXPECT_GE(reads, least - static_cast<int64_t>(room));
      EXPECT_LE(reads, 2 * least + static_cast<int64_t>(room));
    }
  }
}

}  // namespace
}  // namespace colossal::train::tier_evictions_test
