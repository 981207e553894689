#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "colossal/base/error.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/paged.h"
#include "colossal/ops/attention/paged_reference.h"
#include "colossal/ops/products/row_codes.h"
#include "ops/compare.h"

namespace colossal::ops::paged_attention_test {
namespace {

/// Sequences of a batch, with held and new tokens. Their pages are in the pool in any order.
struct Case {
  Case(at::ScalarType type, int64_t heads, int64_t kv_heads, int64_t size, int64_t page, std::vector<int64_t> held,
       std::vector<int64_t> added, uint64_t seed = 1, std::optional<at::ScalarType> codes = {})
      : added(std::move(added)), options(at::TensorOptions().dtype(codes.value_or(type))) {
    int64_t all = 0, count = 0;
    for (size_t i = 0; i < held.size(); ++i) {
      const int64_t tokens = held[i] + this->added[i];
      keys.push_back(normal({tokens, kv_heads, size}, seed + 10 * i).to(type));
      values.push_back(normal({tokens, kv_heads, size}, seed + 10 * i + 1).to(type));
      q.push_back(normal({this->added[i], heads, size}, seed + 10 * i + 2).to(type));
      count += (tokens + page - 1) / page;
      all += this->added[i];
    }
    pages = make_pages(count + 2, page, kv_heads, size, options);
    std::vector<int32_t> order(count + 2);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(seed)));
    auto next = order.begin();
    for (size_t i = 0; i < held.size(); ++i) {
      const int64_t own = (held[i] + this->added[i] + page - 1) / page;
      sequences.push_back({{next, next + own}, 0});
      next += own;
      // held tokens are written in two steps, as by earlier calls
      for (const int64_t part : {held[i] / 3, held[i] - held[i] / 3}) {
        write_pages(pages, {sequences[i]}, keys[i].narrow(0, sequences[i].held, part),
                    values[i].narrow(0, sequences[i].held, part), {part});
        sequences[i].held += part;
      }
    }
  }

  at::Tensor of_new(const std::vector<at::Tensor>& tensors) const {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < tensors.size(); ++i) parts.push_back(tensors[i].narrow(0, sequences[i].held, added[i]));
    return at::cat(parts);
  }
  at::Tensor together(const PagedMask& mask) {
    write_pages(pages, sequences, of_new(keys), of_new(values), added);
    return paged_attention(at::cat(q), pages, sequences, added, mask);
  }
  at::Tensor reference(const PagedMask& mask) const {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < q.size(); ++i) {
      if (added[i] == 0) continue;
      const auto as_rows = [](const at::Tensor& x) { return x.to(at::kDouble).transpose(0, 1).unsqueeze(0); };
      AttentionMask whole{.scale = mask.scale, .window = mask.window, .alibi = mask.alibi, .soft_cap = mask.soft_cap};
      parts.push_back(
          attention_reference(as_rows(q[i]), as_rows(keys[i]), as_rows(values[i]), whole)[0].transpose(0, 1));
    }
    return at::cat(parts);
  }
  PartialAttention whole_sums(const PagedMask& mask) const {
    std::vector<at::Tensor> out, log_sums;
    for (size_t i = 0; i < q.size(); ++i) {
      if (added[i] == 0) continue;
      const auto as_rows = [](const at::Tensor& x) { return x.to(at::kDouble).transpose(0, 1).unsqueeze(0); };
      const AttentionMask all{
          .scale = mask.scale, .window = mask.window, .alibi = mask.alibi, .soft_cap = mask.soft_cap};
      const PartialAttention one =
          partial_attention_reference(as_rows(q[i]), as_rows(keys[i]), as_rows(values[i]), all);
      out.push_back(one.out[0].transpose(0, 1)), log_sums.push_back(one.log_sums[0].transpose(0, 1));
    }
    return {at::cat(out), at::cat(log_sums)};
  }
  /// Returns the partial result of rank `rank` of `ranks`, which holds every ranks-th block of every sequence. Its page
  /// tables refer to its own pool of pages.
  PartialAttention of_rank(int64_t rank, int64_t ranks, const PagedMask& mask) const {
    const int64_t page = pages.tokens();
    std::vector<PagedSequence> own;
    int32_t next = 1;
    for (const PagedSequence& s : sequences) {
      own.push_back({{}, s.held, rank, ranks});
      for (size_t i = static_cast<size_t>(rank); i < s.pages.size(); i += static_cast<size_t>(ranks))
        own.back().pages.push_back(next++);
    }
    Pages part = make_pages(next, page, pages.kv_heads(), pages.size, options);
    part.k.fill_(std::numeric_limits<double>::quiet_NaN());  // pages that are never written must not be read
    for (size_t i = 0; i < own.size(); ++i) {
      PagedSequence whole = own[i];
      whole.held = 0;
      for (const int32_t table_page : whole.pages) part.k[table_page].zero_();
      write_pages(part, {whole}, keys[i], values[i], {keys[i].size(0)});
    }
    return partial_paged_attention(at::cat(q), part, own, added, mask);
  }
  int64_t longest() const {
    int64_t most = 0;
    for (const at::Tensor& k : keys) most = std::max(most, k.size(0));
    return most;
  }

  std::vector<int64_t> added;
  at::TensorOptions options;
  std::vector<at::Tensor> q, keys, values;  // all tokens of each sequence
  Pages pages;
  std::vector<PagedSequence> sequences;
};

struct ThreadScope {
  explicit ThreadScope(int count) { at::set_num_threads(count); }
  ~ThreadScope() { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

const std::vector<at::ScalarType> kTypes{at::kDouble, at::kFloat, at::kBFloat16};

TEST(PagedAttention, EqualsAttentionOfEachSequence) {
  const std::vector<PagedMask> masks{
      {}, {.scale = 0.3, .soft_cap = 2}, {.window = 5}, {.window = 70}, {.alibi = alibi_slopes(6)}};
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType type : kTypes)
      for (const int64_t kv_heads : {6, 2, 1})
        for (size_t m = 0; m < masks.size(); ++m) {
          Case c(type, 6, kv_heads, 20, m % 2 == 0 ? 16 : 48, {0, 130, 63, 64, 7}, {9, 1, 1, 40, 0});
          // weights and keys of bf16 are exact in fp32; the result is rounded once
          expect_close(c.together(masks[m]), c.reference(masks[m]), type, 20 + c.longest(),
                       std::string(name(set)) + " mask " + std::to_string(m));
        }
  }
}

at::Tensor through_codes(const at::Tensor& x, at::ScalarType codes) {
  const RowCodes coded = encode_rows(x, codes);
  return coded.codes.to(at::kDouble) * coded.scales.unsqueeze(-1);
}

TEST(PagedAttention, DequantizesKeysAndValues) {
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType type : kTypes)
      for (const at::ScalarType codes : {at::kChar, at::kFloat8_e4m3fn})
        for (const PagedMask& mask : {PagedMask{}, PagedMask{.window = 70, .alibi = alibi_slopes(6)}}) {
          Case c(type, 6, 2, 20, 16, {0, 130, 63, 64, 7}, {9, 1, 1, 40, 0}, 1, codes);
          const at::Tensor together = c.together(mask);
          const PartialAttention other = paged_attention_reference(at::cat(c.q), c.pages, c.sequences, c.added, mask);
          for (at::Tensor& k : c.keys) k = through_codes(k, codes);
          for (at::Tensor& v : c.values) v = through_codes(v, codes);
          const std::string what = std::string(name(set)) + " " + toString(codes);
          // scores and weights are rounded once more, with their scales
          const at::Tensor want = c.reference(mask);
          expect_close(together, want, type, 4 * (20 + c.longest()), what);
          expect_close(other.out.to(type), want, type, 4 * (20 + c.longest()), what + " by operators");
        }
  }
}

TEST(PagedAttention, QuantizesToTheNearestValue) {
  const at::Tensor x = normal({50, 3, 64}, 3) * normal({50, 3, 1}, 4).exp();
  const at::Tensor most = x.abs().amax(-1, true);
  EXPECT_LT(((through_codes(x, at::kChar) - x).abs() / most).max().item<double>(), 0.5001 / 127);
  const at::Tensor off = (through_codes(x, at::kFloat8_e4m3fn) - x).abs();
  EXPECT_TRUE(off.le(x.abs() * 0.06251 + most * 0x1p-18).all().item<bool>());
  EXPECT_TRUE(through_codes(at::zeros({1, 1, 16}), at::kChar).eq(0).all().item<bool>());
  at::Tensor bad = at::ones({2, 1, 16});
  bad[1][0][3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(through_codes(bad, at::kFloat8_e4m3fn)[1].isnan().all().item<bool>());
  EXPECT_TRUE(through_codes(bad, at::kFloat8_e4m3fn)[0].sub(1).abs().lt(1e-6).all().item<bool>());
}

// Each code must have the value that LibTorch assigns to it, with every instruction set. The value of a single token
// holds all codes.
TEST(PagedAttention, DecodesAllCodes) {
  const at::Tensor all = at::arange(256, at::kInt).to(at::kByte);
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType codes : {at::kChar, at::kFloat8_e4m3fn})
      for (const at::ScalarType type : kTypes) {
        Pages pages = make_pages(1, 16, 1, 256, codes);
        pages.v.view(at::kByte).select(2, 0).copy_(all);
        pages.v_scales.fill_(1);
        const at::Tensor out =
            partial_paged_attention(at::zeros({1, 1, 256}, type), pages, {{.pages = {0}}}, {1}, {}).out;
        const at::Tensor want = all.view(codes).to(out.scalar_type()).view({1, 1, 256});
        const at::Tensor same = out.eq(want).logical_or(want.isnan());
        EXPECT_TRUE(same.all().item<bool>()) << name(set) << " " << toString(codes) << " " << toString(type);
      }
  }
}

// A window of one position makes the logarithm of a query's sum the score of its own key, which is the key's code.
TEST(PagedAttention, DecodesAllCodesOfKeys) {
  const at::Tensor all = at::arange(256, at::kInt).to(at::kByte);
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType codes : {at::kChar, at::kFloat8_e4m3fn})
      for (const at::ScalarType type : kTypes) {
        Pages pages = make_pages(2, 128, 1, 16, codes);
        pages.k.view(at::kByte).select(2, 3).copy_(all.view({2, 1, 128}));
        pages.k_scales.fill_(0.5), pages.v_scales.fill_(1);
        at::Tensor q = at::zeros({256, 1, 16}, type);
        q.select(2, 3).fill_(2);
        const PagedMask mask{.scale = 1, .window = 1};
        const at::Tensor scores = partial_paged_attention(q, pages, {{.pages = {0, 1}}}, {256}, mask).log_sums;
        const at::Tensor want = all.view(codes).to(scores.scalar_type()).view({256, 1});
        EXPECT_TRUE(scores.eq(want).logical_or(want.isnan()).all().item<bool>())
            << name(set) << " " << toString(codes) << " " << toString(type);
      }
  }
}

// Pages of any number of tokens, among them some that no tile fills or whose borders tiles cross, give the same bits.
TEST(PagedAttention, GivesEqualBitsForAnyPageSize) {
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const std::optional<at::ScalarType> codes :
         {std::optional<at::ScalarType>(), std::optional(at::kChar), std::optional(at::kFloat8_e4m3fn)})
      for (const PagedMask& mask : {PagedMask{}, PagedMask{.window = 70}}) {
        at::Tensor first;
        for (const int64_t page : {16, 48, 64, 80, 256}) {
          Case c(at::kBFloat16, 3, 1, 24, page, {0, 130, 270}, {9, 1, 2}, 1, codes);
          const at::Tensor out = c.together(mask);
          if (first.defined()) {
            EXPECT_TRUE(at::equal(out, first)) << name(set) << " pages of " << page << " tokens";
          } else {
            first = out;
          }
        }
      }
  }
}

TEST(PagedAttention, ComputesQueriesIndependently) {
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType type : kTypes)
      for (const PagedMask& mask : {PagedMask{}, PagedMask{.window = 30, .soft_cap = 3}}) {
        Case c(type, 4, 2, 32, 32, {0, 100, 61}, {70, 1, 12});
        const at::Tensor together = c.together(mask);
        int64_t token = 0;
        for (size_t i = 0; i < c.sequences.size(); ++i)
          for (int64_t t = 0; t < c.added[i]; ++t, ++token) {
            PagedSequence alone = c.sequences[i];
            alone.held += t;
            const at::Tensor one = paged_attention(c.q[i].narrow(0, t, 1), c.pages, {alone}, {1}, mask);
            ASSERT_TRUE(at::equal(one[0], together[token])) << name(set) << " sequence " << i << " token " << t;
          }
      }
  }
}

TEST(PagedAttention, MergesResultsOfRanks) {
  const std::vector<PagedMask> masks{
      {}, {.scale = 0.3, .soft_cap = 2}, {.window = 5}, {.window = 70}, {.alibi = alibi_slopes(6)}};
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType type : kTypes)
      for (const int64_t ranks : {1, 2, 3})
        for (size_t m = 0; m < masks.size(); ++m) {
          const Case c(type, 6, 2, 20, m % 2 == 0 ? 16 : 48, {0, 130, 63, 64, 7}, {9, 1, 1, 40, 0});
          PartialAttention all;
          for (int64_t rank = ranks - 1; rank >= 0; --rank) merge(all, c.of_rank(rank, ranks, masks[m]));
          const PartialAttention want = c.whole_sums(masks[m]);
          const std::string what =
              std::string(name(set)) + " mask " + std::to_string(m) + " ranks " + std::to_string(ranks);
          const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
          ASSERT_EQ(all.out.scalar_type(), wide);
          expect_close(all.out, want.out, wide, 20 + c.longest(), what);
          expect_close(all.log_sums, want.log_sums, wide, 20 + c.longest(), what + " log sums");
        }
  }
}

TEST(PagedAttention, ReturnsZerosForUnseenParts) {
  const Case c(at::kFloat, 4, 2, 16, 16, {40}, {2});
  const PartialAttention part = c.of_rank(0, 3, {.window = 5});  // this rank holds tokens 0 to 15
  EXPECT_TRUE(part.out.eq(0).all().item<bool>());
  EXPECT_TRUE(part.log_sums.eq(-std::numeric_limits<double>::infinity()).all().item<bool>());
}

// Long sequences are computed in parts. The bits of the result depend neither on which thread computes a part nor on
// the number of queries that read it.
TEST(PagedAttention, GivesEqualBitsForAnyThreadCount) {
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType type : kTypes)
      for (const PagedMask& mask : {PagedMask{}, PagedMask{.window = 1100}, PagedMask{.window = 30}}) {
        Case c(type, 2, 1, 16, 16, {3070, 1024, 20}, {4, 1, 2});
        at::Tensor serial;
        {
          const ThreadScope one(1);
          serial = c.together(mask);
        }
        const std::string what = std::string(name(set)) + " window " + std::to_string(mask.window);
        expect_close(serial, c.reference(mask), type, 16 + c.longest(), what);
        const ThreadScope three(3);
        ASSERT_TRUE(at::equal(c.together(mask), serial)) << what;
        for (int64_t t = 0; t < 4; ++t) {
          PagedSequence alone = c.sequences[0];
          alone.held += t;
          const at::Tensor one = paged_attention(c.q[0].narrow(0, t, 1), c.pages, {alone}, {1}, mask);
          ASSERT_TRUE(at::equal(one[0], serial[t])) << what << " token " << t;
        }
      }
  }
}

// Earlier contents of a page, and of pages that belong to no sequence, have no effect.
TEST(PagedAttention, IgnoresDataPastTheSequence) {
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType type : kTypes) {
      Case c(type, 4, 2, 16, 16, {5, 17}, {1, 2});
      const at::Tensor want = c.together({});
      const auto nan = std::numeric_limits<double>::quiet_NaN();
      for (size_t i = 0; i < c.sequences.size(); ++i) {
        const int64_t all = c.sequences[i].held + c.added[i];
        const int64_t last = c.sequences[i].pages.back(), used = (all - 1) % 16 + 1;
        c.pages.k.select(0, last).narrow(2, used, 16 - used).fill_(nan);
        c.pages.v.select(0, last).narrow(1, used, 16 - used).fill_(nan);
      }
      EXPECT_TRUE(at::equal(paged_attention(at::cat(c.q), c.pages, c.sequences, c.added, {}), want)) << name(set);
    }
  }
}

TEST(PagedAttention, RefusesMismatchedInputs) {
  EXPECT_THROW(make_pages(4, 24, 2, 16, at::kFloat), Error);
  Case c(at::kFloat, 4, 2, 16, 16, {5}, {3});
  const at::Tensor k = c.of_new(c.keys), v = c.of_new(c.values), q = at::cat(c.q);
  EXPECT_THROW(write_pages(c.pages, c.sequences, k, v, {4}), Error);
  EXPECT_THROW(write_pages(c.pages, c.sequences, k.to(at::kDouble), v, {3}), Error);
  EXPECT_THROW(paged_attention(q.narrow(1, 0, 3), c.pages, c.sequences, {3}, {}), Error);
  EXPECT_THROW(paged_attention(q, c.pages, c.sequences, {3}, {.alibi = alibi_slopes(2)}), Error);
  std::vector<PagedSequence> full = c.sequences;
  full[0].held = 14;
  EXPECT_THROW(write_pages(c.pages, full, k, v, {3}), Error);
  full[0] = {{99}, 0};
  EXPECT_THROW(write_pages(c.pages, full, k, v, {3}), Error);
  std::vector<PagedSequence> part{{{0}, 45, 1, 2}};  // its page has tokens 16 to 31, the next one would have 48 to 63
  EXPECT_NO_THROW(partial_paged_attention(q, c.pages, part, {3}, {}));
  EXPECT_THROW(paged_attention(q, c.pages, part, {3}, {}), Error);
  part[0].held = 46;
  EXPECT_THROW(partial_paged_attention(q, c.pages, part, {3}, {}), Error);
  part[0].held = 45;
  part[0].first_page = -1;
  EXPECT_THROW(partial_paged_attention(q, c.pages, part, {3}, {}), Error);
  part[0] = {{0}, 0, 0, 0};
  EXPECT_THROW(partial_paged_attention(q, c.pages, part, {3}, {}), Error);
}

// Values that are the keys are stored once. Scores then read the same numbers from a tile that was reordered.
TEST(PagedAttention, JointPagesEqualPagesOfEqualKeysAndValues) {
  const std::vector<int64_t> lengths{150, 7, 1};
  const std::vector<PagedSequence> sequences{
      {.pages = {3, 0, 4, 9, 1, 2, 11, 8, 5, 7}}, {.pages = {6}}, {.pages = {10}}};
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const std::optional<at::ScalarType> codes :
         {std::optional<at::ScalarType>(), std::optional(at::kChar), std::optional(at::kFloat8_e4m3fn)}) {
      const at::Tensor k = normal({158, 1, 20}, 3).to(type), q = normal({158, 6, 20}, 4).to(type);
      const auto options = at::TensorOptions().dtype(codes.value_or(type));
      Pages both = make_pages(12, 16, 1, 20, options), joint = make_pages(12, 16, 1, 20, options, true);
      EXPECT_FALSE(joint.k.defined());
      write_pages(both, sequences, k, k, lengths);
      write_pages(joint, sequences, k, {}, lengths);
      for (const PagedMask& mask : {PagedMask{}, PagedMask{.scale = 0.3, .window = 70}}) {
        for (const InstructionSet set : runnable_instruction_sets()) {
          const InstructionSetScope scope(set);
          EXPECT_TRUE(at::equal(paged_attention(q, both, sequences, lengths, mask),
                                paged_attention(q, joint, sequences, lengths, mask)))
              << type << " " << name(set);
        }
        // LibTorch's products round differently where operands lie otherwise in memory. A score of 20 terms is off by
        // up to 20 roundings of |q| |k|, which a weight of the softmax is off by twice; the sum of values adds 150.
        const at::Tensor other = paged_attention_reference(q, joint, sequences, lengths, mask).out;
        const at::Tensor expected = paged_attention_reference(q, both, sequences, lengths, mask).out;
        const double eps = expected.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                 : std::numeric_limits<float>::epsilon();
        const auto largest = [](const at::Tensor& t) { return t.to(at::kDouble).norm(2, -1).max().item<double>(); };
        const double scores = 2 * 20 * 0.3 * largest(q) * largest(k);
        EXPECT_LE((other - expected).abs().max().item<double>(),
                  eps * (150 + scores) * k.to(at::kDouble).abs().max().item<double>())
            << type;
      }
    }
  Pages joint = make_pages(12, 16, 1, 20, at::TensorOptions(), true);
  EXPECT_THROW(write_pages(joint, sequences, at::zeros({158, 1, 20}), at::zeros({158, 1, 20}), lengths), Error);
}

}  // namespace
}  // namespace colossal::ops::paged_attention_test
