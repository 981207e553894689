// Attention on accelerators by LibTorch's flash attention: the path that is chosen, the results, and that the host does
// not wait.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "accelerator/on_accelerator.h"
#include "colossal/base/error.h"
#include "colossal/ops/attention/attention.h"
#include "colossal/ops/device/operators.h"
#include "ops/compare.h"
#include "support/accelerator.h"
#include "support/called_operators.h"

namespace colossal::ops::attention_accelerator_test {
namespace {

using test::on_accelerator;

class AttentionOnAccelerator : public test::AcceleratorTest {};

struct Case {
  int64_t queries, keys;
  bool causal = true, documents = false;
  int64_t window = 0, kv_heads = 2;
};

Tensors inputs_of(const Case& c) {
  return {normal({2, 4, c.queries, 8}, 1), normal({2, c.kv_heads, c.keys, 8}, 2),
          normal({2, c.kv_heads, c.keys, 8}, 3)};
}

/// Returns the document of each key, for documents of 5 tokens. The borders in the second row are shifted.
at::Tensor runs_of(int64_t keys) {
  return (at::arange(keys, at::kLong).unsqueeze(0) + 2 * at::arange(2, at::kLong).unsqueeze(1)).div(5, "floor");
}

AttentionMask mask_of(const Case& c) {
  return {.causal = c.causal, .documents = c.documents ? runs_of(c.keys) : at::Tensor(), .window = c.window};
}

TEST_F(AttentionOnAccelerator, EqualsItsReferenceByFlashAttention) {
  std::vector<Case> cases{{7, 13}, {7, 13, true, false, 4}, {7, 13, false, false, 4}};
  for (const bool causal : {true, false})
    for (const bool documents : {true, false})
      for (const int64_t window : {0, 4})
        if (documents || window > 0) cases.push_back({13, 13, causal, documents, window, causal ? 2 : 4});
  for (const Case& c : cases)
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(
          concat(c.queries, " of ", c.keys, " causal ", c.causal, " documents ", c.documents, " window ", c.window));
      const auto mask = mask_of(c);
      const test::CalledOperators called;
      expect_equal_operators(
          on_accelerator([&](const Tensors& t) { return Tensors{attention(t[0], t[1], t[2], mask)}; }),
          [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask)}; }, inputs_of(c), type,
          c.keys + 8, 2);
      EXPECT_TRUE(called("_flash_attention_forward") && called("_flash_attention_backward"));
      EXPECT_FALSE(called("scaled_dot_product_attention")) << "there is a mask";
    }
}

TEST_F(AttentionOnAccelerator, ReadsHeadsInTheLayoutOfAProjection) {
  const AttentionMask mask = mask_of({13, 13, true, true});
  const auto heads = [&](const at::Tensor& x) { return x.transpose(1, 2).contiguous().transpose(1, 2); };
  expect_equal_operators(
      on_accelerator([&](const Tensors& t) { return Tensors{attention(heads(t[0]), heads(t[1]), heads(t[2]), mask)}; }),
      [&](const Tensors& t) { return Tensors{attention_reference(t[0], t[1], t[2], mask)}; }, inputs_of({13, 13}),
      at::kBFloat16, 21, 2);
}

Tensors there_of(const Case& c, at::ScalarType type) {
  Tensors all;
  for (const at::Tensor& t : inputs_of(c)) all.push_back(t.to(type).to(test::accelerator()));
  return all;
}

TEST_F(AttentionOnAccelerator, ChoosesThePathByTypeAndMask) {
  using enum AttentionPath;
  const Tensors narrow = there_of({13, 13}, at::kBFloat16), wide = there_of({13, 13}, at::kFloat);
  const auto path = [](const Tensors& t, const AttentionMask& mask) { return attention_path(false, t[0], t[1], mask); };
  EXPECT_EQ(path(narrow, {}), Library);
  EXPECT_EQ(path(narrow, {.window = 4}), Flash);
  EXPECT_EQ(path(narrow, {.documents = runs_of(13)}), Flash);
  EXPECT_EQ(path(wide, {.documents = runs_of(13)}), Masked) << "flash attention is of narrow numbers";
  EXPECT_EQ(path(narrow, {.documents = runs_of(13).to(test::accelerator())}), Masked) << "the host knows no borders";
  EXPECT_EQ(path(narrow, {.documents = at::arange(13, at::kLong).remainder(3).expand({2, 13})}), Masked);
  EXPECT_EQ(path(narrow, {.alibi = alibi_slopes(4)}), Masked);
  EXPECT_EQ(path(narrow, {.soft_cap = 3}), Reference);
  EXPECT_EQ(path(there_of({7, 13}, at::kHalf), {}), Flash) << "LibTorch's causal mask starts at the first key";
  const Tensors odd{narrow[0].narrow(3, 0, 7), narrow[1].narrow(3, 0, 7)};
  EXPECT_EQ(path(odd, {.window = 4}), Masked) << "heads of 7 numbers";
  const WithoutDeviceOperator none(DeviceOperator::FlashAttention);
  EXPECT_EQ(path(narrow, {.window = 4}), Masked) << "a GPU too old";
}

// --- decoding ---

TEST_F(AttentionOnAccelerator, CallsFlashAttentionByNameInDecoding) {
  using enum AttentionPath;
  const AttentionMask grows{.grows = true}, lengths{.lengths = {5, 13}, .grows = true};
  const auto path = [](int64_t queries, int64_t keys, at::ScalarType type, const AttentionMask& mask) {
    const Tensors t = there_of({queries, keys}, type);
    return attention_path(false, t[0], t[1], mask);
  };
  EXPECT_EQ(path(13, 13, at::kBFloat16, {}), Library) << "in training and evaluation LibTorch chooses";
  EXPECT_EQ(path(13, 13, at::kBFloat16, grows), Flash) << "of a prompt";
  EXPECT_EQ(path(1, 13, at::kBFloat16, grows), Flash);
  EXPECT_EQ(path(1, 13, at::kFloat, grows), Library);
  EXPECT_EQ(path(1, 13, at::kBFloat16, lengths), Masked) << "the derivative would not know of lengths";
  const at::NoGradGuard no_grad;
  EXPECT_EQ(path(1, 13, at::kHalf, lengths), Flash);
  EXPECT_EQ(path(1, 13, at::kFloat, lengths), Masked);
  const WithoutDeviceOperator none(DeviceOperator::FlashAttention);
  EXPECT_EQ(path(1, 13, at::kBFloat16, grows), Library) << "a GPU too old";
}

/// Returns a copy of `heads` [2, heads, keys, 8] in a cache that has room for `room` keys.
at::Tensor in_cache(const at::Tensor& heads, int64_t room) {
  const at::Tensor cache = at::zeros({heads.size(0), room, heads.size(1), heads.size(3)}, heads.options());
  const at::Tensor held = cache.narrow(1, 0, heads.size(2)).transpose(1, 2);
  held.copy_(heads);
  return held;
}

TEST_F(AttentionOnAccelerator, DecodesLikeItsReferenceWithoutWaits) {
  const at::NoGradGuard no_grad;
  for (const int64_t queries : {1, 3})
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {13, 13}, {5, 13}, {12, 4}})
      for (const bool causal : {true, false})
        for (const int64_t window : {0, 4})
          for (const int64_t room : {13, 20})
            for (const auto type : {at::kBFloat16, at::kHalf, at::kFloat}) {
              SCOPED_TRACE(concat(queries, " queries, causal ", causal, " window ", window, " room ", room, " ", type,
                                  " lengths ", lengths.empty() ? 0 : lengths[0]));
              const AttentionMask mask{.causal = causal, .window = window, .lengths = lengths, .grows = true};
              const Tensors host = inputs_of({queries, 13}), t = there_of({queries, 13}, type);
              const at::Tensor k = in_cache(t[1], room), v = in_cache(t[2], room);
              const test::CalledOperators called;
              test::AcceleratorWaits waits;
              const at::Tensor out = attention(t[0], k, v, mask);
              EXPECT_EQ(waits.counts().waits(), 0) << waits.counts();
              if (waits.are_counted()) {
                EXPECT_EQ(waits.counts().copies_not_awaited, lengths.empty() ? 0 : 1);
              }
              EXPECT_EQ(called("_flash_attention_forward"), type == at::kFloat ? 0 : 1);
              if (type != at::kFloat)
                EXPECT_TRUE(called.with("_flash_attention_forward", k) && called.with("_flash_attention_forward", v))
                    << "the cache is read where it lies";
              Tensors exact;
              for (const at::Tensor& x : host) exact.push_back(x.to(type).to(at::kDouble));
              expect_close(test::peek(out), attention_reference(exact[0], exact[1], exact[2], mask), type, 21, "out",
                           2);
            }
}

TEST_F(AttentionOnAccelerator, ReadsDocumentsWithoutWaits) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const Tensors t = there_of({13, 13}, type);
    test::AcceleratorWaits several;
    attention(t[0], t[1], t[2], {.documents = runs_of(13)});
    EXPECT_EQ(several.counts().waits(), 0) << several.counts();
    if (several.are_counted()) {
      EXPECT_EQ(several.counts().copies_not_awaited, 1);
    }
    test::AcceleratorWaits one;
    attention(t[0], t[1], t[2], {.documents = at::full({2, 13}, 3, at::kLong)});
    EXPECT_EQ(one.counts().waits() + one.counts().copies_not_awaited, 0) << "what hides nothing is no mask";
  }
}

}  // namespace
}  // namespace colossal::ops::attention_accelerator_test
