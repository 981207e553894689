// Attention over parts of the keys on accelerators. Flash attention must give the results of the reference.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/ops/attention/partial.h"
#include "colossal/ops/device/operators.h"
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

using Runs = std::vector<PositionRun>;

at::Tensor those(const at::Tensor& x, int64_t dim, const Runs& runs) {
  std::vector<at::Tensor> each;
  for (const PositionRun& run : runs) each.push_back(x.narrow(dim, run.first, run.size));
  return at::cat(each, dim);
}

/// Computes attention of one rank of a zigzag of two, whose queries are 0-5 and 18-23. The keys arrive in parts, of the
/// other rank and of this one, as in the mode ring, or all at once, as in the mode gather. Returns the result, the
/// gradients of the queries, and the gradients of the keys and values of each part. `documents` [B, S] is on the host,
/// or undefined.
Tensors by_parts(const Inputs& x, const AttentionMask& rule, bool by_reference,
                 const std::vector<Runs>& parts = {{{6, 12}}, {{0, 6}, {18, 6}}}, const at::Tensor& documents = {}) {
  const Runs queries{{0, 6}, {18, 6}};
  AttentionMask mask = rule;
  mask.queries = queries;
  if (documents.defined()) mask.query_documents = those(documents, 1, queries);
  const auto take = [&](const Runs& part) {
    mask.keys = part;
    if (documents.defined()) mask.documents = those(documents, 1, part);
    return Inputs{those(x.q, 2, queries), those(x.k, 2, part), those(x.v, 2, part), those(x.dout, 2, queries)};
  };
  PartialAttention whole;
  for (const Runs& part : parts) {
    const Inputs in = take(part);
    merge(whole, (by_reference ? partial_attention_reference : partial_attention)(in.q, in.k, in.v, mask));
  }
  const at::Tensor dq = at::zeros_like(whole.out);
  Tensors out{whole.out, dq};
  for (const Runs& part : parts) {
    const Inputs in = take(part);
    const AttentionGradients d = (by_reference ? partial_attention_backward_reference : partial_attention_backward)(
        in.dout, in.q, in.k, in.v, mask, whole);
    const auto of = [&](const at::Tensor& gradient) {
      return gradient.defined() ? gradient : at::zeros(in.k.sizes(), dq.options());
    };
    if (d.q.defined()) dq.add_(d.q);
    out.push_back(of(d.k)), out.push_back(of(d.v));
  }
  return out;
}

/// Expects flash attention to run and to give the results of the reference. `pairs` is the number of pairs of a run of
/// queries and a run of keys that attend to each other.
void expect_flash_attention(const AttentionMask& mask, at::ScalarType type, const std::vector<Runs>& parts, int pairs,
                            const at::Tensor& documents = {}) {
  SCOPED_TRACE(concat("causal ", mask.causal, ", window ", mask.window, ", ", parts.size(), " parts"));
  Inputs exact = inputs(), there = exact;
  for (at::Tensor* t : {&exact.q, &exact.k, &exact.v, &exact.dout}) *t = t->to(type).to(at::kDouble);
  there = exact;
  for (at::Tensor* t : {&there.q, &there.k, &there.v, &there.dout}) *t = t->to(type).to(test::accelerator());
  const Tensors want = by_parts(exact, mask, true, parts, documents);
  const test::CalledOperators called;
  const Tensors got = by_parts(there, mask, false, parts, documents);
  EXPECT_EQ(called("_flash_attention_forward"), pairs);
  EXPECT_EQ(called("_flash_attention_backward"), pairs);
  // Each of the three parts of a result or a gradient is rounded, and so is the result that backward reads.
  for (size_t i = 0; i < want.size(); ++i)
    expect_close(got[i].cpu(), want[i], type, kTokens + kSize, concat("value or gradient ", i), 2 * 3);
}

TEST_F(PartialAttentionOnAccelerator, EqualsTheReferenceByFlashAttention) {
  const AttentionMask masks[] = {{}, {.causal = false}, {.window = 20}, {.causal = false, .window = 20}};
  for (const AttentionMask& mask : masks)
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      expect_flash_attention(mask, type, {{{6, 12}}, {{0, 6}, {18, 6}}}, mask.causal ? 4 : 6);
      expect_flash_attention(mask, type, {{{0, kTokens}}}, 2);
    }
}

// Each run is within one document. Runs of other documents are skipped, and within a document no key is masked.
TEST_F(PartialAttentionOnAccelerator, UsesFlashAttentionForRunsInsideDocuments) {
  for (const int64_t length : {6, 18})
    for (const bool causal : {true, false})
      expect_flash_attention({.causal = causal}, at::kBFloat16, {{{6, 12}}, {{0, 6}, {18, 6}}},
                             length == 18 && !causal ? 3 : 2,
                             at::arange(kTokens, at::kLong).div(length, "floor").repeat({kBatch, 1}));
}

// The reference runs for options that flash attention does not support, and on devices without flash attention.
TEST_F(PartialAttentionOnAccelerator, FallsBackToTheReference) {
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
