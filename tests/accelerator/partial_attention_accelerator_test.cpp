// Attention over parts of the keys on accelerators: by flash attention, with the numbers of the reference.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/ops/device_operators.h"
#include "colossal/ops/partial_attention.h"
#include "ops/compare.h"
#include "support/accelerator.h"
#include "support/called_operators.h"

namespace colossal::ops::partial_attention_accelerator_test {
namespace {

class PartialAttentionOnAccelerator : public test::AcceleratorTest {};

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kSize = 8, kTokens = 24;

struct Inputs {
  at::Tensor q, k, v, dout;
};

Inputs inputs() {
  return {normal({kBatch, kHeads, kTokens, kSize}, 1), normal({kBatch, kKvHeads, kTokens, kSize}, 2),
          normal({kBatch, kKvHeads, kTokens, kSize}, 3), normal({kBatch, kHeads, kTokens, kSize}, 4)};
}

/// A zigzag of two ranks, this one's queries: 0-5 and 18-23. Keys come in the runs 6-17, 0-5 and 18-23. Of all of it
/// the result and the gradients.
Tensors by_parts(const Inputs& x, const AttentionMask& rule, bool by_reference) {
  const std::vector<PositionRun> queries{{0, 6}, {18, 6}}, keys{{6, 12}, {0, 6}, {18, 6}};
  const auto run_of = [](const at::Tensor& t, const PositionRun& run) { return t.narrow(2, run.first, run.size); };
  const auto wide = x.q.options().dtype(x.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  Tensors out;
  const at::Tensor dk = at::zeros(x.k.sizes(), wide), dv = at::zeros(x.v.sizes(), wide);
  for (const PositionRun& query : queries) {
    AttentionMask mask = rule;
    mask.queries = {query};
    PartialAttention whole;
    const at::Tensor q = run_of(x.q, query), dout = run_of(x.dout, query);
    for (const PositionRun& key : keys) {
      mask.first_key = key.first;
      merge(whole, (by_reference ? partial_attention_reference : partial_attention)(q, run_of(x.k, key),
                                                                                    run_of(x.v, key), mask));
    }
    at::Tensor dq = at::zeros(q.sizes(), wide);
    for (const PositionRun& key : keys) {
      mask.first_key = key.first;
      const AttentionGradients d = (by_reference ? partial_attention_backward_reference : partial_attention_backward)(
          dout, q, run_of(x.k, key), run_of(x.v, key), mask, whole);
      if (!d.q.defined()) continue;
      dq.add_(d.q);
      run_of(dk, key).add_(d.k), run_of(dv, key).add_(d.v);
    }
    out.push_back(whole.out), out.push_back(dq);
  }
  out.push_back(dk), out.push_back(dv);
  return out;
}

TEST_F(PartialAttentionOnAccelerator, ByFlashAttentionEqualsTheReference) {
  const AttentionMask masks[] = {{}, {.causal = false}, {.window = 20}, {.causal = false, .window = 20}};
  for (const AttentionMask& mask : masks)
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(concat("causal ", mask.causal, ", window ", mask.window));
      Inputs exact = inputs(), there = exact;
      for (at::Tensor* t : {&exact.q, &exact.k, &exact.v, &exact.dout}) *t = t->to(type).to(at::kDouble);
      there = exact;
      for (at::Tensor* t : {&there.q, &there.k, &there.v, &there.dout}) *t = t->to(type).to(test::accelerator());
      const Tensors want = by_parts(exact, mask, true);
      const test::CalledOperators called;
      const Tensors got = by_parts(there, mask, false);
      EXPECT_TRUE(called("_flash_attention_forward") && called("_flash_attention_backward"));
      // Each part of a result or a gradient is rounded, three of them, and so is the result that backward reads.
      for (size_t i = 0; i < want.size(); ++i)
        expect_close(got[i].cpu(), want[i], type, kTokens + kSize, concat("value or gradient ", i), 2 * 3);
    }
}

// What flash attention does not know, and devices that have none.
TEST_F(PartialAttentionOnAccelerator, OtherwiseIsTheReference) {
  Inputs there = inputs();
  for (at::Tensor* t : {&there.q, &there.k, &there.v, &there.dout}) *t = t->to(test::accelerator());
  const AttentionMask capped{.soft_cap = 2};
  for (const AttentionMask& mask : {AttentionMask{}, capped}) {
    const Tensors want = by_parts(inputs(), mask, true), got = by_parts(there, mask, false);
    for (size_t i = 0; i < want.size(); ++i)
      expect_close(got[i].cpu(), want[i], at::kDouble, kTokens + kSize, concat("value or gradient ", i));
  }
  for (at::Tensor* t : {&there.q, &there.k, &there.v, &there.dout}) *t = t->to(at::kBFloat16);
  const WithoutDeviceOperator none(DeviceOperator::FlashAttention);
  const test::CalledOperators called;
  by_parts(there, {}, false);
  EXPECT_FALSE(called("_flash_attention_forward"));
}

}  // namespace
}  // namespace colossal::ops::partial_attention_accelerator_test
