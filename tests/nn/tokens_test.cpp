// The tokens that a rank holds: rows of a batch, and one or several runs of a sequence.
#include "colossal/nn/tokens.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "support/thrown_message.h"

namespace colossal::nn::tokens_test {
namespace {

using testing::ElementsAre;

at::Tensor numbered(int64_t batch, int64_t sequence) {
  return at::arange(batch * sequence, at::kLong).view({batch, sequence});
}

TEST(Tokens, ReturnWholeTensorWithoutSplit) {
  const at::Tensor whole = numbered(2, 6);
  EXPECT_TRUE(Tokens().of(whole).is_same(whole));
  EXPECT_FALSE(Tokens().of(at::Tensor()).defined());
}

TEST(Tokens, ReturnViewForOneRun) {
  const at::Tensor whole = numbered(4, 6);
  const Tokens tokens{.batch = {2, {1}}, .sequence = {3, {1}}};
  const at::Tensor own = tokens.of(whole);
  EXPECT_TRUE(at::equal(own, whole.narrow(0, 2, 2).narrow(1, 2, 2)));
  EXPECT_TRUE(own.is_alias_of(whole));
  EXPECT_TRUE(at::equal(tokens.rows_of(whole), whole.narrow(0, 2, 2)));
}

// Zigzag: of 2 n runs rank r has run r and run r counted from the end.
TEST(Tokens, ConcatenateSeveralRuns) {
  const at::Tensor whole = numbered(2, 12);
  const Tokens tokens{.sequence = {4, {1, 2}}}, ends{.sequence = {4, {0, 3}}};
  EXPECT_TRUE(at::equal(tokens.of(whole), whole.narrow(1, 3, 6)));
  EXPECT_TRUE(at::equal(ends.of(whole), at::cat({whole.narrow(1, 0, 3), whole.narrow(1, 9, 3)}, 1)));
  EXPECT_THAT(ends.sequence.ranges(12, "sequence"), ElementsAre(Range{0, 3}, Range{9, 3}));
  EXPECT_EQ(ends.sequence.whole_size(6), 12);
}

// Zigzag over two ranks of ten tokens: 0-2 and 8-9 on one, 3-7 on the other.
TEST(Tokens, FollowPlannedUnequalRuns) {
  const at::Tensor whole = numbered(2, 10);
  const SequenceCut cut{.lengths = {3, 3, 2, 2}, .held = {{0, 3}, {2, 1}}};
  const Share ends = cut.share(0, 2), middle = cut.share(1, 2);
  EXPECT_THAT(ends.ranges(10, "sequence"), ElementsAre(Range{0, 3}, Range{8, 2}));
  EXPECT_THAT(middle.ranges(10, "sequence"), ElementsAre(Range{3, 3}, Range{6, 2})) << "in the order of the sequence";
  EXPECT_EQ(ends.whole_size(5), 10);
  const Tokens tokens{.batch = {2, {1}}, .sequence = ends};
  EXPECT_TRUE(at::equal(tokens.of(whole), at::cat({whole.slice(1, 0, 3), whole.slice(1, 8)}, 1).narrow(0, 1, 1)));
  EXPECT_EQ(test::thrown_message([&] { tokens.of(numbered(2, 12)); }),
            "[parallel] the sequence must be the 10 that its runs add up to: got 12; plan them for this batch");
}

// Five words before ten patches: each rank has some of both.
TEST(SequenceCut, JoinsOneSequenceAndTheNext) {
  const SequenceCut words = near_even_cut(5, 2), patches{.lengths = {3, 3, 2, 2}, .held = {{0, 3}, {1, 2}}};
  EXPECT_THAT(words.lengths, ElementsAre(3, 2));
  const SequenceCut both = joined(words, patches);
  EXPECT_EQ(both.tokens(), 15);
  EXPECT_THAT(both.share(0, 2).ranges(15, "sequence"), ElementsAre(Range{0, 3}, Range{5, 3}, Range{13, 2}));
  EXPECT_THAT(both.share(1, 2).ranges(15, "sequence"), ElementsAre(Range{3, 2}, Range{8, 3}, Range{11, 2}));
}

TEST(Tokens, OrderRunsOfNeighboursBySequence) {
  const SequenceCut cut{.lengths = {1, 2, 3, 4, 5, 6, 7, 8}, .held = {{0, 7}, {1, 6}, {2, 5}, {3, 4}}};
  EXPECT_THAT(cut.share(1, 2).held, ElementsAre(2, 3, 4, 5));
  EXPECT_TRUE(cut.share(0, 1).is_all());
}

// A rank that was given three of the four runs, 7 of the 10 tokens, takes its own runs from these.
TEST(Tokens, SelectFromPartialBatch) {
  SequenceCut cut{.lengths = {3, 3, 2, 2}, .held = {{0}, {3}, {1}, {2}}};
  cut.given = {1, 2, 3};
  EXPECT_EQ(cut.tokens(), 10);
  const at::Tensor whole = numbered(2, 10), part = whole.slice(1, 3);
  const Tokens second{.sequence = cut.share(1, 2)}, last{.sequence = cut.share(3, 4)};
  EXPECT_EQ(last.sequence.ranges(10, "sequence"), (std::vector<Range>{{6, 2}})) << "of the whole sequence";
  EXPECT_TRUE(at::equal(last.of(part), whole.slice(1, 6, 8)));
  EXPECT_TRUE(at::equal(Tokens{.sequence = cut.share(1, 4)}.of(part), whole.slice(1, 8)));
  cut.given = {1, 2};
  EXPECT_TRUE(second.sequence.held == cut.given);
  const at::Tensor own = whole.slice(1, 3, 8);
  EXPECT_TRUE(Tokens{.sequence = cut.share(1, 2)}.of(own).is_same(own)) << "nothing else was given";
  EXPECT_EQ(test::thrown_message([&] { Tokens{.sequence = cut.share(1, 4)}.of(own); }),
            "[parallel] a rank must be given the runs that it holds: it holds run 3 of the sequence and was given runs "
            "[1, 2]");
  EXPECT_THAT(test::thrown_message([&] { last.of(whole); }),
              testing::HasSubstr("the sequence must be the 7 that its runs add"));
}

TEST(Tokens, RefuseRunsNotHeldExactlyOnce) {
  EXPECT_EQ(test::thrown_message([] { SequenceCut{.lengths = {2, 2}, .held = {{0}, {0}}}.share(0, 2); }),
            "[parallel] each of the 2 runs of a sequence must be held by exactly one rank: got indices [0, 0]");
  EXPECT_EQ(test::thrown_message([] { SequenceCut{.lengths = {8}, .held = {{0}, {}}}.share(1, 2); }),
            "[parallel] each rank must hold a run of the sequence: got none for rank 1 of 2; split it into more runs, "
            "or over fewer ranks");
  EXPECT_EQ(test::thrown_message([] { SequenceCut{.lengths = {2, 2}, .held = {{0}, {1}}}.share(0, 4); }),
            "[parallel] a split of the sequence over 2 ranks cannot be divided into 4 parts; plan it for the ranks "
            "that split the sequence");
}

TEST(Tokens, RefuseSizesThatDoNotDivide) {
  const Tokens tokens{.batch = {2, {0}}, .sequence = {3, {0}}};
  EXPECT_EQ(test::thrown_message([&] { tokens.of(numbered(3, 6)); }),
            "[parallel] the batch must be divisible by the 2 runs that it is split into: got 3");
  EXPECT_EQ(test::thrown_message([&] { tokens.of(numbered(2, 7)); }),
            "[parallel] the sequence must be divisible by the 3 runs that it is split into: got 7");
}

}  // namespace
}  // namespace colossal::nn::tokens_test
