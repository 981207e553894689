// Attention in the order of generation: the bits of paged attention for each token, and the gradients of the reference.
#include <gmock/gmock.h>

#include "colossal/base/error.h"
#include "colossal/ops/attention/ordered.h"
#include "colossal/ops/attention/paged.h"
#include "ops/compare.h"

namespace colossal::ops::ordered_attention_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 2, kTokens = 83, kHeads = 4, kKeyHeads = 2, kSize = 6;

/// Masks with each option; `packed` = rows of documents of several lengths.
std::vector<AttentionMask> masks(bool packed) {
  std::vector<AttentionMask> all{
      {}, {.window = 7}, {.scale = 0.3, .alibi = alibi_slopes(kHeads)}, {.window = 40, .soft_cap = 2}};
  const at::Tensor documents = at::arange(kTokens, at::kLong).mul(3).div(100, "floor").expand({kRows, kTokens}).clone();
  documents[1].narrow(0, 5, kTokens - 5).add_(10);
  for (AttentionMask& mask : all)
    if (packed) mask.documents = documents;
  return all;
}

Tensors inputs() {
  return {normal({kRows, kTokens, kHeads, kSize}, 1), normal({kRows, kTokens, kKeyHeads, kSize}, 2),
          normal({kRows, kTokens, kKeyHeads, kSize}, 3)};
}

template <class Attention>
Operator by(const Attention& attention, const AttentionMask& mask) {
  return [=](const Tensors& t) {
    return Tensors{attention(t[0].transpose(1, 2), t[1].transpose(1, 2), t[2].transpose(1, 2), mask)};
  };
}

TEST(OrderedAttention, EqualsTheReference) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const bool packed : {false, true})
      for (const AttentionMask& mask : masks(packed))
        // Backward rounds the weights of bf16, and sums of their gradients cancel.
        expect_equal_operators(by(ordered_attention, mask), by(attention_reference, mask), inputs(), type,
                               kTokens * kSize, 8);
}

// A token is computed alone, as it is generated: with the keys of its sequence so far in pages of another size.
TEST(OrderedAttention, GivesTheBitsOfGeneratedTokens) {
  const Tensors all = inputs();
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const bool packed : {false, true})
      for (const AttentionMask& mask : masks(packed)) {
        const auto of = [&](const at::Tensor& x) { return x.to(type); };
        const at::Tensor together =
            by(ordered_attention, mask)({of(all[0]), of(all[1]), of(all[2])})[0].transpose(1, 2);
        for (int64_t row = 0; row < kRows; ++row) {
          int64_t begin = 0;
          Pages pages;
          PagedSequence own{.pages = {2, 0, 1, 3, 4, 5}};
          for (int64_t t = 0; t < kTokens; ++t) {
            const bool starts = t == 0 || (packed && !mask.documents[row][t].equal(mask.documents[row][t - 1]));
            if (starts) {
              begin = t;
              pages = make_pages(6, 16, kKeyHeads, kSize, at::TensorOptions().dtype(type));
            }
            own.held = t - begin;
            const auto at = [&](const at::Tensor& x) { return of(x)[row].narrow(0, t, 1); };
            write_pages(pages, {own}, at(all[1]), at(all[2]), {1});
            const at::Tensor alone =
                paged_attention(at(all[0]), pages, {own}, {1}, {mask.scale, mask.window, mask.alibi, mask.soft_cap});
            ASSERT_TRUE(at::equal(alone[0], together[row][t])) << toString(type) << ", row " << row << ", token " << t;
          }
        }
      }
}

TEST(OrderedAttention, RefusesDocumentsWithGaps) {
  const Tensors t = inputs();
  AttentionMask mask{.documents = at::zeros({kRows, kTokens}, at::kLong)};
  mask.documents[1][4] = 1;
  try {
    by(ordered_attention, mask)(t);
    FAIL() << "tokens 5 and later are of document 0 again";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("got document 0 again at token 5 of row 1"));
  }
}

}  // namespace
}  // namespace colossal::ops::ordered_attention_test
