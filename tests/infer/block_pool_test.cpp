#include "colossal/infer/decoding/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "colossal/base/error.h"

namespace colossal::infer::block_pool_test {
namespace {

using Tokens = std::vector<int64_t>;
using Blocks = std::vector<int32_t>;

Tokens counted(int64_t count, int64_t first = 0) {
  Tokens tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

Blocks taken(BlockPool& pool, int64_t count) {
  Blocks blocks;
  for (int64_t i = 0; i < count; ++i) blocks.push_back(pool.take().value());
  return blocks;
}

void give_all_back(BlockPool& pool, const Blocks& blocks) {
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) pool.give_back(*block);
}

TEST(BlockPool, FindsCachedPrefixesExceptTheLastToken) {
  BlockPool pool(8, 4);
  const Blocks blocks = taken(pool, 3);
  pool.keep(blocks, counted(11));  // two full blocks
  EXPECT_EQ(pool.find(counted(11)), Blocks(blocks.begin(), blocks.begin() + 2));
  EXPECT_EQ(pool.find(counted(9)), Blocks(blocks.begin(), blocks.begin() + 2));
  EXPECT_EQ(pool.find(counted(8)), Blocks(blocks.begin(), blocks.begin() + 1));  // the last token must be computed
  EXPECT_EQ(pool.find(counted(4)), Blocks());
  EXPECT_EQ(pool.find(counted(11, 1)), Blocks());
  EXPECT_EQ(pool.references(blocks[0]), 4);
  EXPECT_EQ(pool.references(blocks[1]), 3);
}

TEST(BlockPool, IdentifiesBlocksByTheirWholePrefix) {
  BlockPool pool(8, 2);
  const Blocks first = taken(pool, 2), second = taken(pool, 2);
  pool.keep(first, {1, 2, 7, 8});
  pool.keep(second, {3, 4, 7, 8});
  EXPECT_EQ(pool.find({3, 4, 7, 8, 9}), second);
  EXPECT_EQ(pool.find({7, 8, 9}), Blocks());
}

TEST(BlockPool, FindsPrefixesUnderTheirOwnKeyOnly) {
  BlockPool pool(8, 2);
  const Blocks shared = taken(pool, 2), a = taken(pool, 2), b = taken(pool, 2);
  pool.keep(a, counted(4), 0, "a");
  EXPECT_EQ(pool.find(counted(5), "b"), Blocks());
  EXPECT_EQ(pool.find(counted(5)), Blocks()) << "the empty key is a key like others";
  pool.keep(shared, counted(4));
  pool.keep(b, counted(4), 0, "b");
  EXPECT_EQ(pool.find(counted(5)), shared);
  EXPECT_EQ(pool.find(counted(5), "a"), a);
  EXPECT_EQ(pool.find(counted(5), "b"), b);
  EXPECT_EQ(pool.find({2, 3, 9}, "a"), Blocks());  // the number of a prefix is never the number of a key
}

TEST(BlockPool, ExtendsAPrefixWhoseFirstBlocksWereFreedUnderItsOwnKey) {
  BlockPool pool(4, 2);
  const Blocks blocks = taken(pool, 2);
  pool.keep(blocks, counted(2), 0, "a");
  pool.give_back(blocks[0]);
  pool.keep(blocks, counted(4), 1, "b");
  EXPECT_EQ(pool.find(counted(5), "a"), Blocks{blocks[0]});
  pool.keep(blocks, counted(4), 1, "a");
  EXPECT_EQ(pool.find(counted(5), "a"), blocks);
}

TEST(BlockPool, EvictsTheLeastRecentlyUsedFirst) {
  BlockPool pool(4, 2);
  const Blocks a = taken(pool, 2), b = taken(pool, 1);
  pool.keep(a, counted(4));
  pool.keep(b, counted(2, 50));
  give_all_back(pool, a);
  give_all_back(pool, b);
  EXPECT_EQ(pool.free(), 4);
  EXPECT_FALSE(pool.find({0, 0, 0}).size());
  pool.take();                          // takes the block without a prefix
  EXPECT_EQ(pool.find(counted(5)), a);  // both are cached, and now used again
  give_all_back(pool, a);
  pool.take();  // takes b's block, which was not used since
  EXPECT_EQ(pool.find(counted(3, 50)), Blocks());
  EXPECT_EQ(pool.find(counted(5)), a);
}

TEST(BlockPool, RefusesToReleaseUnallocatedBlocks) {
  BlockPool pool(2, 2);
  const int32_t block = pool.take().value();
  pool.give_back(block);
  EXPECT_THROW(pool.give_back(block), Error);
  EXPECT_THROW(pool.give_back(7), Error);
  EXPECT_THROW(BlockPool(0, 2), Error);
  taken(pool, 2);
  EXPECT_EQ(pool.take(), std::nullopt);
}

// Sequences start, grow, share blocks and end at random. Reference counts equal the uses by sequences, no block leaks,
// and find() returns what keep() cached.
TEST(BlockPool, CountsReferencesThroughRandomUse) {
  constexpr int64_t kBlocks = 40, kTokens = 4, kRounds = 100000;
  BlockPool pool(kBlocks, kTokens);
  std::mt19937 draw(1);
  struct Sequence {
    Tokens tokens;
    Blocks blocks;
  };
  std::vector<Sequence> sequences;
  std::vector<Tokens> content(kBlocks);  // all tokens that a block stands for, including its prefix
  for (int64_t round = 0; round < kRounds; ++round) {
    const auto choice = draw() % 4;
    if (choice == 0 && sequences.size() < 12) {
      Sequence s{.tokens = counted(1 + static_cast<int64_t>(draw() % 20))};
      if (draw() % 3 == 0) s.tokens[draw() % s.tokens.size()] = 99;
      s.blocks = pool.find(s.tokens);
      for (size_t i = 0; i < s.blocks.size(); ++i)
        ASSERT_EQ(content[s.blocks[i]], Tokens(s.tokens.begin(), s.tokens.begin() + (i + 1) * kTokens));
      sequences.push_back(std::move(s));
    } else if (choice == 3 && !sequences.empty()) {
      std::swap(sequences[draw() % sequences.size()], sequences.back());
      give_all_back(pool, sequences.back().blocks);
      sequences.pop_back();
    } else if (!sequences.empty()) {
      Sequence& s = sequences[draw() % sequences.size()];
      s.tokens.push_back(static_cast<int64_t>(s.tokens.size()));
      while (static_cast<int64_t>(s.blocks.size()) < pool.blocks_for(static_cast<int64_t>(s.tokens.size()))) {
        const auto block = pool.take();
        if (!block) break;
        content[*block] = {};
        s.blocks.push_back(*block);
      }
      const auto held = std::min(s.tokens.size(), s.blocks.size() * kTokens);
      for (size_t i = 0; (i + 1) * kTokens <= held; ++i)
        if (content[s.blocks[i]].empty())
          content[s.blocks[i]] = Tokens(s.tokens.begin(), s.tokens.begin() + (i + 1) * kTokens);
      pool.keep(s.blocks, Tokens(s.tokens.begin(), s.tokens.begin() + held));
    }
    std::vector<int64_t> references(kBlocks);
    for (const Sequence& s : sequences)
      for (const int32_t block : s.blocks) ++references[block];
    int64_t unused = 0;
    for (int32_t i = 0; i < kBlocks; ++i) {
      ASSERT_EQ(pool.references(i), references[i]) << "block " << i << " in round " << round;
      unused += references[i] == 0;
    }
    ASSERT_EQ(pool.free(), unused);
  }
}

}  // namespace
}  // namespace colossal::infer::block_pool_test
