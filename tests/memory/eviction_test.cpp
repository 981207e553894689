// The tensor that each policy evicts.
#include "colossal/memory/tiers/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::memory::eviction_test {
namespace {

size_t leaves(const std::string& policy, const std::vector<Candidate>& candidates) {
  const auto eviction = make_eviction(policy);
  const auto less = [&](const Candidate& a, const Candidate& b) { return eviction->key(a) < eviction->key(b); };
  return std::max_element(candidates.begin(), candidates.end(), less)->number;
}

TEST(Eviction, ChoosesByItsPolicy) {
  const std::vector<Candidate> candidates{{4, 7, 30}, {5, 9, 20}, {6, 2, 10}, {7, 8, 40}};
  EXPECT_EQ(leaves("auto", candidates), 5u) << "used again last";
  EXPECT_EQ(leaves("lru", candidates), 6u) << "used longest ago";
  EXPECT_EQ(leaves("static", candidates), 7u) << "came last";
}

TEST(Eviction, EvictsTheLeastRecentlyUsedWithoutPredictions) {
  EXPECT_EQ(leaves("auto", {{0, 100, 5}, {1, {}, 9}, {2, {}, 7}, {3, 1, 1}}), 2u);
}

TEST(Eviction, RefusesUnknownPolicies) {
  try {
    make_eviction("best");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[memory] placement must be one of auto, lru, static: got best");
  }
}

}  // namespace
}  // namespace colossal::memory::eviction_test
