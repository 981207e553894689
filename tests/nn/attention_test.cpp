// Compares the attention layer with the op's reference: every option reaches the op, and a cache does not change
// results.
#include "colossal/nn/attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/rotary.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::attention_test {
namespace {

constexpr AttentionShape kShape{.hidden = 20, .heads = 6, .kv_heads = 2, .head_dim = 5};
constexpr int64_t kBatch = 2, kSequence = 13;

at::Tensor normal(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kDouble));
}

Heads random_heads(int64_t batch, int64_t tokens) {
  return {normal({batch, tokens, kShape.heads, kShape.head_dim}, 1),
          normal({batch, tokens, kShape.kv_heads, kShape.head_dim}, 2),
          normal({batch, tokens, kShape.kv_heads, kShape.head_dim}, 3)};
}

// Returns tokens [from, from + count).
Heads run_of(const Heads& heads, int64_t from, int64_t count) {
  return {heads.q.narrow(1, from, count), heads.k.narrow(1, from, count), heads.v.narrow(1, from, count)};
}

at::Tensor reference(const Heads& heads, const ops::AttentionMask& mask) {
  return ops::attention_reference(heads.q.transpose(1, 2), heads.k.transpose(1, 2), heads.v.transpose(1, 2), mask)
      .transpose(1, 2)
      .flatten(2);
}

struct Case {
  const char* name;
  AttentionOptions options;
  ops::AttentionMask mask;
};

// Returns each option alone, then all of them together.
std::vector<Case> cases() {
  const at::Tensor slopes = ops::alibi_slopes(kShape.heads);
  return {{"plain", {}, {}},
          {"not causal", {.causal = false}, {.causal = false}},
          {"window", {.window = 4}, {.window = 4}},
          {"alibi", {.alibi = true}, {.alibi = slopes}},
          {"weaker alibi", {.alibi = true, .alibi_scale = 0.25}, {.alibi = slopes * 0.25}},
          {"cap", {.soft_cap = 1.5}, {.soft_cap = 1.5}},
          {"scale", {.scale = 0.3}, {.scale = 0.3}},
          {"all",
           {.window = 4, .alibi = true, .soft_cap = 1.5, .scale = 0.3},
           {.scale = 0.3, .window = 4, .alibi = slopes, .soft_cap = 1.5}}};
}

std::unique_ptr<Attention> layer_of(const AttentionOptions& options) {
  Parameters parameters({}, {.dtype = at::kDouble});
  return SerialLayers(parameters).attention("attention", kShape, options);
}

void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  EXPECT_NO_THROW(test::expect_close(got, want, kSequence + kShape.head_dim, what)) << what;
}

TEST(AttentionLayer, PassesAllOptionsToOp) {
  const Heads heads = random_heads(kBatch, kSequence);
  for (const Case& c : cases())
    expect_close(layer_of(c.options)->forward(heads, {}).tensor, reference(heads, c.mask), c.name);
}

TEST(AttentionLayer, SeparatesDocuments) {
  const Heads heads = random_heads(kBatch, kSequence);
  const at::Tensor documents =
      at::arange(kSequence, at::kLong).div(5, "floor").expand({kBatch, kSequence}).contiguous();
  expect_close(layer_of({})->forward(heads, {.documents = documents}).tensor,
               reference(heads, {.documents = documents}), "documents");
}

TEST(AttentionLayer, EqualsWholeSequenceWithCache) {
  // Two sequences of kSequence tokens in one row, in steps of unequal lengths: first the prompts, then one or both.
  const Heads all = random_heads(1, 2 * kSequence);
  for (const Case& c : cases()) {
    if (!c.options.causal) continue;  // an earlier token would have had to attend to later ones
    const auto layer = layer_of(c.options);
    KvCache cache(kSequence);
    std::vector<int64_t> held{0, 0};
    for (const std::vector<int64_t>& added : {std::vector<int64_t>{3, 9}, {1, 1}, {0, 2}, {8, 1}, {1, 0}}) {
      const Heads first = run_of(all, held[0], added[0]), second = run_of(all, kSequence + held[1], added[1]);
      const Heads step{at::cat({first.q, second.q}, 1), at::cat({first.k, second.k}, 1),
                       at::cat({first.v, second.v}, 1)};
      const ForwardContext carried{.parts = {Sequences{added}, Decoding{&cache}}};
      const at::Tensor got = layer->forward(step, carried).tensor;
      cache.advance(carried, step.q.size(1));
      for (int i = 0, start = 0; i < 2; start += static_cast<int>(added[i++])) {
        held[i] += added[i];
        if (added[i] == 0) continue;
        expect_close(got.narrow(1, start, added[i]),
                     reference(run_of(all, i * kSequence, held[i]), c.mask).slice(1, held[i] - added[i]),
                     concat(c.name, ", sequence ", i, " at ", held[i]));
      }
    }
  }
}

TEST(AttentionLayer, RotatesByLengthOfWholeSequence) {
  const ops::RotaryTable table(4, 10000,
                               {.kind = ops::RotaryScaling::Kind::Dynamic, .factor = 4, .original_positions = 6});
  const at::Tensor positions = at::arange(kSequence, at::kLong).expand({kBatch, kSequence}).contiguous();
  const Heads all = random_heads(kBatch, kSequence);
  const auto [q, k] = ops::rotary(all.q, all.k, positions, table);
  Heads whole = all;
  turn(whole, {.positions = positions}, table);
  EXPECT_TRUE(at::equal(whole.q, q) && at::equal(whole.k, k) && at::equal(whole.v, all.v));
  // The first 4 of 13 tokens. The rank was given the positions of all tokens, or only of these.
  const SequenceCut cut{.lengths = {4, 9}, .held = {{0}, {1}}};
  SequenceCut given = cut;
  given.given = {0};
  for (const SequenceCut& known : {cut, given}) {
    Heads part = run_of(all, 0, 4);
    part.tokens.sequence = known.share(0, 2);
    const ForwardContext step{.positions = known.given.empty() ? positions : positions.narrow(1, 0, 4),
                              .cut = std::make_shared<const SequenceCut>(known)};
    turn(part, step, table);
    EXPECT_TRUE(at::equal(part.q, q.narrow(1, 0, 4)) && at::equal(part.k, k.narrow(1, 0, 4)));
  }
  // Two sequences in a row, the longer with 5 tokens and then 8, because cached tokens count.
  KvCache cache(kSequence);
  const ForwardContext prompt{.positions = at::tensor({0, 1, 2, 0, 1, 2, 3, 4}, at::kLong).unsqueeze(0),
                              .parts = {Sequences{{3, 5}}, Decoding{&cache}}};
  const Heads row = random_heads(1, 8);
  Heads turned = row;
  turn(turned, prompt, table);
  EXPECT_TRUE(at::equal(turned.q, ops::rotary(row.q, prompt.positions, table, 5)));
  cache.append(0, turned.k, turned.v, prompt);
  cache.advance(prompt, 8);
  ForwardContext next = prompt;
  next.positions = at::tensor({3, 5, 6, 7}, at::kLong).unsqueeze(0);
  next.parts.set(Sequences{{1, 3}});
  Heads more = run_of(row, 0, 4);
  turn(more, next, table);
  EXPECT_TRUE(at::equal(more.q, ops::rotary(row.q.narrow(1, 0, 4), next.positions, table, 8)));
  EXPECT_FALSE(at::equal(more.q, ops::rotary(row.q.narrow(1, 0, 4), next.positions, table, 6)));
}

// A document is rotated as it is alone in a row, whatever else the rows have.
TEST(AttentionLayer, RotatesByLengthOfEachDocument) {
  const auto table_of = [](ops::RotaryScaling::Kind kind) {
    return ops::RotaryTable(
        4, 10000,
        {.kind = kind, .factor = 4, .original_positions = 4, .short_factor = {1, 1.5}, .long_factor = {3, 5}});
  };
  const at::Tensor documents = at::tensor({0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2,  //
                                           0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2},
                                          at::kLong)
                                   .view({2, 13}),
                   positions = at::tensor({0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3,  //
                                           0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 0},
                                          at::kLong)
                                   .view({2, 13});
  const std::vector<std::vector<int64_t>> lengths{{3, 6, 4}, {10, 2, 1}};
  for (const auto kind : {ops::RotaryScaling::Kind::Dynamic, ops::RotaryScaling::Kind::LongRope}) {
    const ops::RotaryTable table = table_of(kind);
    const Heads all = random_heads(2, 13);
    Heads turned = all;
    turned.q.requires_grad_(true);
    const Heads leaf = turned;
    ForwardContext step{
        .positions = positions, .documents = documents, .known_documents = std::make_shared<BatchDocuments>(documents)};
    turn(turned, step, table);
    const at::Tensor weights = at::randn_like(all.q);
    (turned.q * weights).sum().backward();
    for (int64_t row = 0; row < 2; ++row)
      for (int64_t d = 0, first = 0; d < 3; first += lengths[row][d++]) {
        const int64_t length = lengths[row][d];
        const auto part = [&](const at::Tensor& x) { return x.detach().narrow(0, row, 1).narrow(1, first, length); };
        Heads alone{part(all.q).clone().requires_grad_(true), part(all.k), part(all.v), {}};
        const at::Tensor q = alone.q;
        turn(alone, {.positions = part(positions)}, table);
        EXPECT_TRUE(at::equal(part(turned.q), alone.q) && at::equal(part(turned.k), alone.k)) << row << ", " << d;
        (alone.q * part(weights)).sum().backward();
        EXPECT_TRUE(at::equal(part(leaf.q.grad()), q.grad())) << row << ", " << d;
      }
    // A rank with tokens 5 to 12 counts those of other ranks, whether it was given their positions or not.
    const SequenceCut cut{.lengths = {5, 8}, .held = {{0}, {1}}};
    SequenceCut given = cut;
    given.given = {1};
    for (const SequenceCut& known : {cut, given}) {
      Heads part = run_of(all, 5, 8);
      part.tokens.sequence = known.share(1, 2);
      step.positions = known.given.empty() ? positions : positions.narrow(1, 5, 8);
      step.cut = std::make_shared<const SequenceCut>(known);
      turn(part, step, table);
      EXPECT_TRUE(at::equal(part.q, turned.q.narrow(1, 5, 8)) && at::equal(part.k, turned.k.narrow(1, 5, 8)));
    }
  }
}

TEST(AttentionLayer, RefusesDocumentsWithCache) {
  const at::Tensor documents = at::zeros({kBatch, kSequence}, at::kLong);
  KvCache cache(kSequence);
  const ForwardContext carried{.documents = documents, .parts = {Decoding{&cache}}};
  EXPECT_THAT(test::thrown_message([&] { layer_of({})->forward(random_heads(kBatch, kSequence), carried); }),
              testing::HasSubstr("a step must not have both documents and a cache"));
  EXPECT_TRUE(cache.lengths().empty());
}

TEST(AttentionLayer, RefusesPartialSequence) {
  Heads heads = random_heads(kBatch, kSequence);
  heads.tokens.sequence = {2, {1}};
  EXPECT_EQ(test::thrown_message([&] { layer_of({})->forward(heads, {}); }),
            "[parallel] attention of whole sequences needs all tokens of each row: got some of them; use a layout that "
            "gathers the sequence inside, or an attention that reads keys of other ranks");
}

TEST(AttentionLayer, RefusesNegativeWindow) {
  EXPECT_THAT(test::thrown_message([] { layer_of({.window = -2}); }),
              testing::HasSubstr("window and soft_cap of attention must be 0 (none) or more: got -2"));
}

}  // namespace
}  // namespace colossal::nn::attention_test
