#include "colossal/nn/relative_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/ops/dispatch.h"
#include "colossal/tensor/flops.h"

namespace colossal::nn {
namespace {

/// Returns the number of pairs of a query and a key that are not masked.
double pairs_of(int64_t queries, int64_t keys, bool causal) {
  const auto all = static_cast<double>(queries) * static_cast<double>(keys);
  return causal ? all - static_cast<double>(queries) * static_cast<double>(queries - 1) / 2 : all;
}

/// Returns true for each query that must not attend to a key, [.., T, S]; undefined = none is masked.
at::Tensor hidden_pairs(const BiasedScores& rules, int64_t queries, int64_t keys, at::Device device) {
  at::Tensor hidden;
  if (rules.causal && queries > 1)
    hidden = at::ones({queries, keys}, at::TensorOptions().dtype(at::kBool).device(device)).triu(keys - queries + 1);
  if (!rules.query_documents.defined()) return hidden;
  const at::Tensor others =
      rules.query_documents.to(device).unsqueeze(-1).ne(rules.key_documents.to(device).unsqueeze(-2)).unsqueeze(1);
  return hidden.defined() ? hidden.bitwise_or(others) : others;
}

}  // namespace

at::Tensor RelativeBuckets::of(int64_t queries, int64_t keys) const {
  const int64_t sides = both_sides ? 2 : 1, of_side = count / sides, exact = of_side / 2;
  require(exact > 0 && count % sides == 0, "model", "buckets of relative positions must be at least ", 2 * sides,
          ", and even if they cover both sides: got ", count);
  require(max_distance > exact, "model",
          "max_distance must be greater than the number of buckets of a single distance, ", exact, ": got ",
          max_distance);
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor from = at::arange(keys - queries, keys, ids).unsqueeze(1), to = at::arange(keys, ids).unsqueeze(0);
  const at::Tensor relative = to - from;
  const at::Tensor distance = both_sides ? relative.abs() : (-relative).clamp_min(0);
  // Computed in fp32 and in this order, so that distances at the borders fall into the same buckets as in transformers.
  const double steps = static_cast<double>(of_side - exact);
  const double growth = std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const at::Tensor wide =
      (distance.clamp_min(1).to(at::kFloat).div(exact).log().div(growth).mul(steps).to(at::kLong) + exact)
          .clamp_max(of_side - 1);
  const at::Tensor bucket = at::where(distance.lt(exact), distance, wide);
  return both_sides ? bucket + relative.gt(0) * of_side : bucket;
}

Inside biased_attention(const Heads& heads, const BiasedScores& rules) {
  const at::Tensor q = heads.q.transpose(1, 2), k = heads.k.transpose(1, 2), v = heads.v.transpose(1, 2);
  const int64_t queries = q.size(2), keys = k.size(2);
  const auto type = ops::wide_type(q);
  const double operations =
      4.0 * static_cast<double>(q.size(0) * q.size(1) * q.size(3)) * pairs_of(queries, keys, rules.causal);
  const tensor::Operation attention{tensor::Operation::Kind::Attention, q.scalar_type()};
  tensor::announce_flops(operations, attention);
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)).to(type);
  if (rules.bias.defined()) scores = scores + rules.bias.to(type);
  const at::Tensor hidden = hidden_pairs(rules, queries, keys, q.device());
  if (hidden.defined()) scores = scores.masked_fill(hidden, std::numeric_limits<float>::lowest());
  at::Tensor weights = scores.softmax(-1);
  // A query without a key of its document has equal weights here, but must attend to no key.
  if (rules.query_documents.defined()) weights = weights.masked_fill(hidden, 0);
  const at::Tensor out = at::matmul(weights.to(v.scalar_type()), v).transpose(1, 2).flatten(2);
  tensor::announce_flops_in_backward(out, 2 * operations, attention);
  return {out};
}

}  // namespace colossal::nn
