// The choice of a replica for each request, and the prefixes that it depends on.
#include "colossal/serve/replicas/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "serve/stand_in_replica.h"

namespace colossal::serve::replicas_test {
namespace {

using testing::ElementsAre;

/// Returns `blocks` blocks of 64 tokens, and `more` tokens that fill no block. Prompts of equal `first` begin alike.
std::vector<int64_t> prompt_of(int64_t first, int64_t blocks, int64_t more = 0) {
  std::vector<int64_t> tokens(static_cast<size_t>(64 * blocks + more));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class ReplicasOfThree : public testing::Test {
 protected:
  /// Adds a generation and returns the index of the replica that got it.
  size_t add(std::vector<int64_t> prompt, const std::string& cache_key = "", const std::string& adapter = "") {
    return added([&] {
      return replicas.add(only({.prompt = std::move(prompt), .cache_key = cache_key, .adapter = adapter})).has_value();
    });
  }
  template <class Add>
  size_t added(const Add& call) {
    std::vector<size_t> before;
    for (const StandInReplica& replica : all) before.push_back(replica.count());
    EXPECT_TRUE(call());
    for (size_t k = 0; k < 3; ++k)
      if (all[k].count() > before[k]) return k;
    return 3;
  }
  void set_work(size_t k, int64_t waiting, int64_t running) {
    all[k].set_load({.waiting = waiting, .running = running});
  }

  StandInReplica all[3];
  Replicas replicas{{&all[0], &all[1], &all[2]}, {.max_waiting = 100}};
};

TEST_F(ReplicasOfThree, SendsNewPromptsToTheLeastLoaded) {
  EXPECT_EQ(add(prompt_of(0, 2)), 0U) << "the first of equal ones";
  set_work(0, 1, 0), set_work(1, 0, 1);
  EXPECT_EQ(add(prompt_of(1000, 2)), 2U);
  set_work(2, 1, 1);
  EXPECT_EQ(add(prompt_of(2000, 2)), 0U);
}

TEST_F(ReplicasOfThree, SendsAPromptWhereItsLongestPrefixIs) {
  set_work(0, 0, 1);
  EXPECT_EQ(add(prompt_of(0, 1)), 1U);
  set_work(1, 0, 2);
  std::vector<int64_t> longer = prompt_of(0, 3), other = longer;
  other[64] = -1;
  // Replica 1 has the first block of both.
  EXPECT_EQ(add(longer), 1U);
  set_work(2, 0, 3);
  EXPECT_EQ(add(other), 1U);
  set_work(1, 0, 3), set_work(0, 0, 0), set_work(2, 0, 2);
  EXPECT_EQ(add(prompt_of(500, 1)), 0U);
  EXPECT_EQ(add(longer), 1U);
  EXPECT_EQ(add(prompt_of(0, 0, 63)), 0U) << "no full block";
}

TEST_F(ReplicasOfThree, PrefersTheLessLoadedOfEqualPrefixes) {
  EXPECT_EQ(add(prompt_of(0, 2)), 0U);
  set_work(0, 0, 4);
  EXPECT_EQ(add(prompt_of(0, 2)), 1U) << "replica 0 has four more";
  set_work(0, 0, 3), set_work(1, 0, 2);
  EXPECT_EQ(add(prompt_of(0, 2)), 1U);
  set_work(0, 0, 1);
  EXPECT_EQ(add(prompt_of(0, 2)), 0U);
}

TEST_F(ReplicasOfThree, GivesUpAPrefixForFourRequests) {
  EXPECT_EQ(add(prompt_of(0, 8)), 0U);
  set_work(0, 2, 1);
  EXPECT_EQ(add(prompt_of(0, 8)), 0U) << "three more than the others";
  set_work(0, 2, 2);
  EXPECT_EQ(add(prompt_of(0, 8)), 1U);
}

TEST_F(ReplicasOfThree, KeepsPrefixesOfKeysApart) {
  EXPECT_EQ(add(prompt_of(0, 2), "a"), 0U);
  set_work(0, 0, 1);
  EXPECT_EQ(add(prompt_of(0, 2), "b"), 1U);
  set_work(1, 0, 1);
  EXPECT_EQ(add(prompt_of(0, 2), "a"), 0U);
  EXPECT_EQ(add(prompt_of(0, 2), "b"), 1U);
}

TEST_F(ReplicasOfThree, KeepsPrefixesOfAdaptersApart) {
  EXPECT_EQ(add(prompt_of(0, 2), "", "poet"), 0U);
  set_work(0, 0, 1);
  EXPECT_EQ(add(prompt_of(0, 2)), 1U);
  set_work(1, 0, 1);
  EXPECT_EQ(add(prompt_of(0, 2), "", "poet"), 0U);
  EXPECT_EQ(add(prompt_of(0, 2), "poet"), 2U) << "a key is no adapter";
}

TEST_F(ReplicasOfThree, KeepsTheGenerationsOfARequestTogether) {
  EXPECT_EQ(add(prompt_of(0, 2)), 0U);
  set_work(0, 0, 1);
  EXPECT_EQ(add(prompt_of(1000, 1)), 1U);
  set_work(0, 0, 2), set_work(1, 0, 2);
  std::vector<Generation> request(4);
  request[0].prompt = prompt_of(1000, 1), request[1] = request[0], request[1].after = 0;
  request[2].prompt = prompt_of(0, 2), request[3].prompt = prompt_of(3000, 1);
  EXPECT_EQ(added([&] { return replicas.add(request).has_value(); }), 0U) << "two blocks against one";
  EXPECT_EQ(all[0].count(), 5U);
  EXPECT_EQ(all[0].generation(3).after, 0);
  set_work(2, 0, 1);
  EXPECT_EQ(add(prompt_of(3000, 1)), 0U) << "all prompts of the request are remembered";
}

TEST_F(ReplicasOfThree, SendsEmbeddingsToTheLeastLoaded) {
  set_work(0, 1, 0);
  EXPECT_EQ(added([&] { return replicas.add(Embedding{.texts = {{1, 2}}}).has_value(); }), 1U);
}

TEST_F(ReplicasOfThree, PreparesSchemasEverywhere) {
  replicas.prepare("{}");
  for (StandInReplica& replica : all) EXPECT_THAT(replica.prepared(1), ElementsAre("{}"));
}

TEST_F(ReplicasOfThree, CancelsAtTheReplicaOfTheTicket) {
  std::vector<Generation> two(2);
  const auto first = replicas.add(two);
  set_work(0, 1, 0);
  const auto second = replicas.add(two);
  set_work(1, 1, 0);
  const auto third = replicas.add(Embedding{});
  ASSERT_TRUE(first && second && third);
  EXPECT_NE(*first, *second);
  for (const Ticket none : {Ticket{0}, Ticket{-1}, 3 * Replicas::kTicketsPerReplica + 1}) replicas.cancel(none);
  replicas.cancel(*first + 1), replicas.cancel(*second + 1), replicas.cancel(*third), replicas.cancel(*second);
  EXPECT_THAT(all[0].cancelled(1), ElementsAre(2));
  EXPECT_THAT(all[1].cancelled(2), ElementsAre(2, 1));
  EXPECT_THAT(all[2].cancelled(1), ElementsAre(1));
}

TEST_F(ReplicasOfThree, LimitsWaitingWorkOfAllTogether) {
  set_work(0, 50, 7), set_work(1, 47, 7);
  std::vector<Generation> four(4);
  EXPECT_FALSE(replicas.add(four).has_value());
  four.pop_back();
  EXPECT_TRUE(replicas.add(four).has_value());
  set_work(2, 3, 0);
  EXPECT_FALSE(replicas.add(Embedding{}).has_value());
  set_work(1, 46, 8);
  EXPECT_TRUE(replicas.add(Embedding{}).has_value());
}

TEST_F(ReplicasOfThree, RefusesWhatTheReplicaRefuses) {
  for (StandInReplica& replica : all) replica.refuse();
  EXPECT_FALSE(replicas.add(only({.prompt = prompt_of(0, 1)})).has_value());
  EXPECT_FALSE(replicas.add(Embedding{}).has_value());
}

TEST_F(ReplicasOfThree, SumsLoads) {
  all[0].set_load({1, 2, 3, 4});
  all[1].set_load({10, 20, 30, 40});
  all[2].set_load({100, 200, 300, 400});
  const ReplicaLoad sum = replicas.load();
  EXPECT_EQ(sum.waiting, 111);
  EXPECT_EQ(sum.running, 222);
  EXPECT_EQ(sum.blocks, 333);
  EXPECT_EQ(sum.blocks_used, 444);
}

TEST(PrefixHasher, HashesFullBlocksWithAllTokensBefore) {
  const PrefixHasher hasher;
  const auto blocks = hasher.blocks_of(prompt_of(0, 3), "key");
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(hasher.blocks_of(prompt_of(0, 3, 63), "key"), blocks);
  EXPECT_TRUE(hasher.blocks_of(prompt_of(0, 0, 63), "key").empty());
  std::vector<int64_t> changed = prompt_of(0, 3);
  changed[64] = 7;
  const auto others = hasher.blocks_of(changed, "key");
  EXPECT_EQ(others[0], blocks[0]);
  EXPECT_NE(others[1], blocks[1]);
  EXPECT_NE(others[2], blocks[2]) << "the third block has the same tokens, but not the same prefix";
  EXPECT_NE(hasher.blocks_of(prompt_of(0, 1), "other")[0], blocks[0]);
  EXPECT_NE(hasher.blocks_of(prompt_of(0, 1), "key", "poet")[0], blocks[0]);
  EXPECT_NE(PrefixHasher().blocks_of(prompt_of(0, 1), "key")[0], blocks[0]) << "each process has a random key";
}

TEST(SentPrefixes, DropsTheLeastRecentlyUsed) {
  SentPrefixes sent(4);
  sent.remember({1, 2});
  sent.remember({3, 4});
  sent.remember({1});
  sent.remember({5, 6});
  EXPECT_EQ(sent.size(), 4U);
  EXPECT_EQ(sent.shared({1, 2}), 1) << "block 1 was used again after 3 and 4";
  EXPECT_EQ(sent.shared({3, 4}), 1) << "the end of a prefix is dropped first";
  EXPECT_EQ(sent.shared({5, 6}), 2);
  EXPECT_EQ(sent.shared({2}), 0);
}

TEST(SentPrefixes, KeepsTheBeginningOfALongPrompt) {
  SentPrefixes sent(3);
  sent.remember({1, 2, 3, 4, 5});
  EXPECT_EQ(sent.shared({1, 2, 3, 4, 5}), 3);
  EXPECT_EQ(sent.size(), 3U);
}

}  // namespace
}  // namespace colossal::serve::replicas_test
