// Neighbours of tokens in rows, documents, sequences and in generation.
#include "colossal/nn/neighbours.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/nn/attention_cache.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/token_memory.h"
#include "support/thrown_message.h"

namespace colossal::nn::neighbours_test {
namespace {

using testing::HasSubstr;

Neighbours neighbours(Reach reach) { return {std::make_shared<const TokenRuns>(), reach, 0}; }

/// A row of tokens with the numbers 1, 2, ... [1, tokens, 1].
at::Tensor row(int64_t tokens, int64_t first = 1) {
  return at::arange(first, first + tokens, at::kDouble).view({1, tokens, 1});
}

std::vector<double> values(const at::Tensor& x) {
  const at::Tensor flat = x.flatten().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

TEST(Neighbours, AreZeroBeyondTheRow) {
  const Halo halo = neighbours({.before = 2, .after = 1}).of(row(4), {});
  EXPECT_EQ(values(halo.at(-2)), (std::vector<double>{0, 0, 1, 2}));
  EXPECT_EQ(values(halo.at(0)), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(values(halo.at(1)), (std::vector<double>{2, 3, 4, 0}));
  EXPECT_THAT(test::thrown_message([&] { halo.at(-3); }), HasSubstr("within the reach, -2 to 1: got -3"));
  EXPECT_THAT(test::thrown_message([&] { neighbours({.before = -1}); }), HasSubstr("must not be negative: got -1"));
}

TEST(Neighbours, StopAtDocumentsAndSequences) {
  const Neighbours near = neighbours({.before = 2});
  const at::Tensor documents = at::tensor({0, 0, 0, 1, 1}, at::kLong).view({1, 5});
  EXPECT_EQ(values(near.of(row(5), {.documents = documents}).at(-2)), (std::vector<double>{0, 0, 1, 0, 0}));
  EXPECT_EQ(values(near.of(row(5), {.documents = documents}).at(-1)), (std::vector<double>{0, 1, 2, 0, 4}));
  EXPECT_EQ(values(near.of(row(5), {.parts = {Sequences{{2, 3}}}}).at(-1)), (std::vector<double>{0, 1, 0, 3, 4}));
}

TEST(Neighbours, PassGradientsToTheirTokens) {
  const at::Tensor x = row(4).requires_grad_();
  const Halo halo = neighbours({.before = 1, .after = 1}).of(x, {});
  (halo.at(-1) * 10 + halo.at(1)).sum().backward();
  EXPECT_EQ(values(x.grad()), (std::vector<double>{10, 11, 11, 1}));
}

/// Reads a step of sequences through a memory and returns the tokens two places before.
std::vector<double> read(TokenMemory& memory, std::vector<TokenMemory::Sequence> sequences, const at::Tensor& x) {
  memory.take(std::move(sequences));
  return values(neighbours({.before = 2}).of(x, {.parts = {RememberedTokens{&memory}}}).at(-2));
}

TEST(TokenMemory, ContinuesEachSequence) {
  TokenMemory memory(0);
  EXPECT_EQ(read(memory, {{.id = 7, .first = 0, .tokens = 3}}, row(3)), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(read(memory, {{7, 3, 1}, {8, 0, 2}}, at::cat({row(1, 4), row(2, 100)}, 1)), (std::vector<double>{2, 0, 0}));
  EXPECT_EQ(read(memory, {{8, 2, 2}, {7, 4, 1}}, at::cat({row(2, 102), row(1, 5)}, 1)),
            (std::vector<double>{100, 101, 3}));
  EXPECT_EQ(read(memory, {{7, 0, 1}}, row(1, 50)), (std::vector<double>{0})) << "it begins anew";
  memory.end(7);
  EXPECT_THAT(test::thrown_message([&] { read(memory, {{7, 1, 1}}, row(1)); }),
              HasSubstr("the 1 tokens before token 1 of sequence 7: they are not remembered"));
  EXPECT_EQ(read(memory, {{8, 4, 1}}, row(1, 104)), (std::vector<double>{102}));
}

TEST(TokenMemory, StepsBackByDrafts) {
  TokenMemory memory(2);
  read(memory, {{0, 0, 4}}, row(4));
  EXPECT_EQ(read(memory, {{0, 4, 3}}, row(3, 5)), (std::vector<double>{3, 4, 5})) << "two of them are drafts";
  EXPECT_EQ(read(memory, {{0, 5, 2}}, row(2, 60)), (std::vector<double>{4, 5})) << "both drafts were refused";
  EXPECT_EQ(read(memory, {{0, 7, 1}}, row(1, 62)), (std::vector<double>{60}));
  EXPECT_THAT(test::thrown_message([&] { read(memory, {{0, 4, 1}}, row(1)); }), HasSubstr("are not remembered"));
}

TEST(Neighbours, RefuseGenerationThatTheyCannotContinue) {
  KvCache cache(8);
  EXPECT_THAT(test::thrown_message([&] { neighbours({.before = 1}).of(row(2), {.parts = {Decoding{&cache}}}); }),
              HasSubstr("must have nn::RememberedTokens"));
  TokenMemory memory(0);
  memory.take({{0, 0, 2}});
  EXPECT_THAT(
      test::thrown_message([&] { neighbours({.after = 1}).of(row(2), {.parts = {RememberedTokens{&memory}}}); }),
      HasSubstr("a layer that reads 1 tokens after each token does not generate"));
  EXPECT_THAT(
      test::thrown_message([&] { neighbours({.before = 1}).of(row(3), {.parts = {RememberedTokens{&memory}}}); }),
      HasSubstr("must have its 3 tokens: got 2"));
}

}  // namespace
}  // namespace colossal::nn::neighbours_test
