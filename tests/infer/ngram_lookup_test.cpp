#include "colossal/infer/decoding/ngram_lookup.h"

#include <gtest/gtest.h>

#include <random>

namespace colossal::infer::ngram_lookup_test {
namespace {

using Ids = std::vector<int64_t>;

TEST(NgramLookup, ProposesWhatFollowedBefore) {
  EXPECT_EQ(NgramLookup({1, 2, 3, 4, 5, 9, 1, 2}, 3).propose(9), (Ids{3, 4, 5}));
  EXPECT_EQ(NgramLookup({1, 2, 3, 4, 5, 9, 1, 2}, 9).propose(2), (Ids{3, 4}));
  EXPECT_EQ(NgramLookup({1, 2, 3, 4}, 9).propose(9), Ids());
  EXPECT_EQ(NgramLookup({7}, 9).propose(9), Ids());
  EXPECT_EQ(NgramLookup({1, 2, 3, 1, 2}, 9).propose(0), Ids());
}

TEST(NgramLookup, PrefersTheLongestAndLastRun) {
  // The last token after 2 3 was 5, but after 1 2 3 it was 4.
  EXPECT_EQ(NgramLookup({1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 1).propose(1), (Ids{4}));
  EXPECT_EQ(NgramLookup({2, 3, 4, 9, 2, 3, 5, 8, 2, 3}, 1).propose(1), (Ids{5}));
}

TEST(NgramLookup, ContinuesARepetition) {
  EXPECT_EQ(NgramLookup({1, 2, 1, 2}, 5).propose(5), (Ids{1, 2, 1, 2, 1}));
  EXPECT_EQ(NgramLookup({7, 7, 7}, 4).propose(4), (Ids{7, 7, 7, 7}));
}

TEST(NgramLookup, EqualsAScan) {
  std::mt19937 draw(3);
  for (int round = 0; round < 300; ++round) {
    Ids tokens;
    NgramLookup lookup({}, 4);
    for (int i = 0; i < 40; ++i) {
      tokens.push_back(draw() % 3);
      lookup.push(tokens.back());
      Ids want;
      for (size_t count = std::min<size_t>(4, tokens.size()); count >= 2 && want.empty(); --count)
        for (size_t end = tokens.size() - 1; end >= count && want.empty(); --end)
          if (std::equal(tokens.end() - count, tokens.end(), tokens.begin() + (end - count)))
            for (size_t t = 0; t < 4; ++t)
              want.push_back(end + t < tokens.size() ? tokens[end + t] : want[end + t - tokens.size()]);
      ASSERT_EQ(lookup.propose(4), want) << round << " " << i;
    }
  }
}

TEST(NgramLookup, AdaptsTheNumberOfProposedTokens) {
  NgramLookup lookup({7, 7, 7}, 8);
  EXPECT_EQ(lookup.propose(99).size(), 8U);
  lookup.judge(8, 2);
  EXPECT_EQ(lookup.propose(99).size(), 3U);
  lookup.judge(3, 3);
  EXPECT_EQ(lookup.propose(99).size(), 6U);
  lookup.judge(6, 0);
  EXPECT_EQ(lookup.propose(99).size(), 0U);  // one call proposes no tokens
  EXPECT_EQ(lookup.propose(99).size(), 3U);
  lookup.judge(3, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(lookup.propose(99).size(), 0U);
  EXPECT_EQ(lookup.propose(99).size(), 3U);
  for (int i = 0; i < 20; ++i) lookup.judge(1, 0);
  int left_out = 0;
  while (lookup.propose(99).empty()) ++left_out;
  EXPECT_EQ(left_out, 32);
}

}  // namespace
}  // namespace colossal::infer::ngram_lookup_test
