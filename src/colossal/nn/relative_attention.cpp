#include "colossal/nn/relative_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/ops/attention/biased.h"

namespace colossal::nn {
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
  const auto one_group = [](const at::Tensor& x) { return x.defined() ? x.unsqueeze(0) : x; };
  const auto of_heads = [](const at::Tensor& x) { return x.transpose(1, 2).unsqueeze(0); };
  const at::Tensor out = ops::biased_attention(of_heads(heads.q), of_heads(heads.k), of_heads(heads.v),
                                               {.bias = one_group(rules.bias),
                                                .causal = rules.causal,
                                                .query_documents = one_group(rules.query_documents),
                                                .key_documents = one_group(rules.key_documents),
                                                .scale = 1});
  return {out[0].transpose(1, 2).flatten(2)};
}

}  // namespace colossal::nn
