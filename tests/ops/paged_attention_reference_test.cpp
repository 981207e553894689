// Attention to pages by LibTorch's operators: it must equal our kernel, also in parts as ranks hold them, whatever else
// the pages contain.
#include <limits>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/paged_reference.h"
#include "ops/compare.h"

namespace colossal::ops::paged_attention_reference_test {
namespace {

constexpr int64_t kHeads = 6, kKvHeads = 2, kSize = 20, kTokens = 16;

/// Sequences of any lengths, written in two steps. The pages are distributed over `ranks` ranks; each rank has its own
/// pool of pages.
struct Texts {
  Texts(at::ScalarType type, int64_t ranks, std::vector<int64_t> held, std::vector<int64_t> added)
      : added(std::move(added)), longest(0) {
    int64_t all = 0;
    int32_t next = 0;
    for (size_t i = 0; i < held.size(); ++i) {
      sequences.push_back({{}, 0});
      longest = std::max(longest, held[i] + this->added[i]);
      for (int64_t t = 0; t < held[i] + this->added[i]; t += kTokens * ranks) sequences[i].pages.push_back(next++);
      all += this->added[i];
    }
    // Reverses the order of the pages and leaves page 0 to no sequence. It holds NaN, so reading it fails the test.
    for (PagedSequence& s : sequences)
      for (int32_t& page : s.pages) page = next - page;
    for (int64_t r = 0; r < ranks; ++r) {
      Pages own = make_pages(next + 1, kTokens, kKvHeads, kSize, type);
      own.k.fill_(std::numeric_limits<double>::quiet_NaN());
      own.v.fill_(std::numeric_limits<double>::quiet_NaN());
      pages.push_back(std::move(own));
    }
    write(held, 1, type);
    for (size_t i = 0; i < held.size(); ++i) sequences[i].held = held[i];
    write(this->added, 3, type);
    q = normal({all, kHeads, kSize}, 5).to(type);
  }
  void write(const std::vector<int64_t>& lengths, uint64_t seed, at::ScalarType type) {
    const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const at::Tensor k = normal({all, kKvHeads, kSize}, seed).to(type),
                     v = normal({all, kKvHeads, kSize}, seed + 1).to(type);
    for (size_t r = 0; r < pages.size(); ++r) write_pages_reference(pages[r], of_rank(r), k, v, lengths);
  }
  std::vector<PagedSequence> of_rank(size_t rank) const {
    std::vector<PagedSequence> own = sequences;
    for (PagedSequence& s : own)
      s.first_page = static_cast<int64_t>(rank), s.page_stride = static_cast<int64_t>(pages.size());
    return own;
  }
  /// Returns the merged result [T, N, D] of the parts of all ranks.
  at::Tensor merged(const PagedMask& mask) const {
    PartialAttention whole;
    for (size_t r = 0; r < pages.size(); ++r)
      merge(whole, paged_attention_reference(q, pages[r], of_rank(r), added, mask));
    return whole.out;
  }

  std::vector<int64_t> added;
  int64_t longest;
  std::vector<PagedSequence> sequences;
  std::vector<Pages> pages;
  at::Tensor q;
};

Texts texts(at::ScalarType type, int64_t ranks) { return {type, ranks, {0, 130, 63, 64, 7, 15}, {9, 1, 1, 40, 0, 1}}; }

std::vector<PagedMask> masks() {
  return {{}, {.scale = 0.3, .soft_cap = 2}, {.window = 5}, {.window = 70}, {.alibi = alibi_slopes(kHeads)}};
}

TEST(PagedAttentionReference, EqualsTheKernel) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const PagedMask& mask : masks()) {
      Texts t = texts(type, 1);
      const at::Tensor want = paged_attention(t.q, t.pages[0], t.sequences, t.added, mask);
      expect_close(t.merged(mask).to(type), want, type, kSize + t.longest, toString(type), 1);
    }
}

TEST(PagedAttentionReference, MergesResultsOfRanks) {
  for (const int64_t ranks : {2, 3})
    for (const PagedMask& mask : masks())
      expect_close(texts(at::kDouble, ranks).merged(mask), texts(at::kDouble, 1).merged(mask), at::kDouble,
                   kSize + texts(at::kDouble, 1).longest, std::to_string(ranks) + " ranks");
}

TEST(PagedAttentionReference, SupportsDtypesWithoutAKernel) {
  ASSERT_FALSE(has_paged_attention(at::kCPU, at::kHalf));
  Texts t = texts(at::kHalf, 1);
  const at::Tensor got = paged_attention(t.q, t.pages[0], t.sequences, t.added, {});
  EXPECT_EQ(got.scalar_type(), at::kHalf);
  Pages wide = t.pages[0];
  wide.k = wide.k.to(at::kDouble), wide.v = wide.v.to(at::kDouble);
  expect_close(got, paged_attention(t.q.to(at::kDouble), wide, t.sequences, t.added, {}), at::kHalf, kSize + t.longest,
               "fp16");
  // write_pages() uses the reference for this dtype, too.
  Pages again = make_pages(t.pages[0].count(), kTokens, kKvHeads, kSize, at::kHalf);
  const at::Tensor k = normal({9, kKvHeads, kSize}, 3).to(at::kHalf);
  write_pages(again, {t.sequences[0]}, k, k, {9});
  EXPECT_TRUE(at::equal(again.k[t.sequences[0].pages[0]].narrow(2, 0, 9), k.permute({1, 2, 0})));
}

TEST(PagedAttentionReference, ReturnsZerosForRanksWithoutKeys) {
  const Texts t(at::kFloat, 2, {3}, {2});  // all tokens are in the first page, of rank 0
  const PartialAttention none = paged_attention_reference(t.q, t.pages[1], t.of_rank(1), t.added, {});
  EXPECT_TRUE(none.out.eq(0).all().item<bool>());
  EXPECT_TRUE(none.log_sums.eq(-std::numeric_limits<double>::infinity()).all().item<bool>());
}

TEST(PagedAttentionReference, RefusesMismatchedInputs) {
  Texts t(at::kHalf, 1, {5}, {3});
  const at::Tensor k = at::zeros({3, kKvHeads, kSize}, at::kHalf);
  EXPECT_THROW(write_pages_reference(t.pages[0], t.sequences, k, k, {4}), Error);
  EXPECT_THROW(write_pages_reference(t.pages[0], t.sequences, k.to(at::kFloat), k, {3}), Error);
  EXPECT_THROW(write_pages_reference(t.pages[0], t.sequences, k.narrow(1, 0, 1), k, {3}), Error);
  EXPECT_THROW(paged_attention_reference(t.q.narrow(1, 0, 5), t.pages[0], t.sequences, {3}, {}), Error);
  EXPECT_THROW(paged_attention_reference(t.q, t.pages[0], t.sequences, {3}, {.alibi = alibi_slopes(2)}), Error);
  t.sequences[0].held = 14;  // 17 tokens: too many for one page of 16, but not for one page of 16 on each of two ranks
  EXPECT_THROW(write_pages_reference(t.pages[0], t.sequences, k, k, {3}), Error);
  t.sequences[0].page_stride = 2;
  EXPECT_NO_THROW(write_pages_reference(t.pages[0], t.sequences, k, k, {3}));
  t.sequences[0] = {{99}, 0};
  EXPECT_THROW(write_pages_reference(t.pages[0], t.sequences, k, k, {3}), Error);
}

}  // namespace
}  // namespace colossal::ops::paged_attention_reference_test
