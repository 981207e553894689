// The queue finds the tensor to evict first without a look at all tensors: the same one as by a look at all, and with
// few keys.
#include "colossal/memory/tiers/eviction_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace colossal::memory::eviction_queue_test {
namespace {

/// Counts the keys of another policy.
struct Counted final : EvictionPolicy {
  Counted(const std::string& name, int64_t& keys) : policy(make_eviction_policy(name)), keys(keys) {}
  Key key(const Candidate& candidate) const override {
    ++keys;
    return policy->key(candidate);
  }
  std::unique_ptr<EvictionPolicy> policy;
  int64_t& keys;
};

// Passes that repeat, stop early, and take another order; tensors that may be evicted at times.
TEST(EvictionQueue, OrdersByCurrentKeys) {
  for (const std::string& name : eviction_policy_names()) {
    constexpr size_t kTensors = 17;
    const auto policy = make_eviction_policy(name);
    Timeline timeline;
    EvictionQueue queue(make_eviction_policy(name), timeline);
    std::map<size_t, uint64_t> in;
    std::mt19937 random(5);
    uint64_t clock = 0;
    for (int pass = 0; pass < 60; ++pass) {
      std::mt19937 order(pass / 4);
      const int uses = pass % 7 == 3 ? 11 : 40;
      for (int use = 0; use < uses; ++use) {
        const size_t number = order() % kTensors;
        timeline.used(number);
        queue.put(number, in[number] = ++clock);
        if (const size_t other = random() % kTensors; random() % 3 == 0) queue.remove(other), in.erase(other);
        const auto key = [&](const auto& entry) {
          return policy->key({entry.first, timeline.next_use(entry.first), entry.second});
        };
        const auto want =
            std::max_element(in.begin(), in.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
        const auto got = queue.first();
        ASSERT_EQ(got.has_value(), want != in.end());
        if (got) ASSERT_EQ(*got, want->first) << name << ", pass " << pass << ", use " << use;
      }
      timeline.end_pass();
    }
  }
}

/// Returns the number of keys computed in a pass over `tensors` tensors, each use followed by a choice, with equal
/// passes.
int64_t keys_of_a_pass(const std::string& name, size_t tensors) {
  int64_t keys = 0;
  Timeline timeline;
  EvictionQueue queue(std::make_unique<Counted>(name, keys), timeline);
  uint64_t clock = 0;
  for (int pass = 0; pass < 4; ++pass) {
    keys = 0;
    for (size_t number = 0; number < tensors; ++number) {
      timeline.used(number);
      queue.put(number, ++clock);
      queue.first();
    }
    timeline.end_pass();
  }
  return keys;
}

TEST(EvictionQueue, ComputesOneKeyPerUse) {
  for (const std::string& name : eviction_policy_names())
    for (const size_t tensors : {10, 1000}) EXPECT_EQ(keys_of_a_pass(name, tensors), static_cast<int64_t>(tensors));
}

}  // namespace
}  // namespace colossal::memory::eviction_queue_test
