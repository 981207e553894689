// The tensor that each policy evicts.
#include "colossal/memory/tiers/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::memory::eviction_policy_test {
namespace {

size_t evicted(const std::string& name, const std::vector<Candidate>& candidates) {
  const auto policy = make_eviction_policy(name);
  const auto less = [&](const Candidate& a, const Candidate& b) { return policy->key(a) < policy->key(b); };
  return std::max_element(candidates.begin(), candidates.end(), less)->number;
}

TEST(EvictionPolicy, ChoosesByItsPolicy) {
  const std::vector<Candidate> candidates{{4, 7, 30}, {5, 9, 20}, {6, 2, 10}, {7, 8, 40}};
  EXPECT_EQ(evicted("auto", candidates), 5u) << "used again last";
  EXPECT_EQ(evicted("lru", candidates), 6u) << "used longest ago";
  EXPECT_EQ(evicted("static", candidates), 7u) << "came last";
}

TEST(EvictionPolicy, EvictsTheLeastRecentlyUsedWithoutPredictions) {
  EXPECT_EQ(evicted("auto", {{0, 100, 5}, {1, {}, 9}, {2, {}, 7}, {3, 1, 1}}), 2u);
}

TEST(EvictionPolicy, RefusesUnknownPolicies) {
  try {
    make_eviction_policy("best");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[memory] placement must be one of auto, lru, static: got best");
  }
}

}  // namespace
}  // namespace colossal::memory::eviction_policy_test
