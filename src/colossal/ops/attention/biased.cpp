#include "colossal/ops/attention/biased.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/attention/biased_paths.h"
#include "colossal/ops/dispatch.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Packing the keys costs more than it saves with fewer queries.
constexpr int64_t kFewQueries = 8;

double scale_or_default(const at::Tensor& q, const AttentionBias& rules) {
  return rules.scale != 0 ? rules.scale : 1 / std::sqrt(static_cast<double>(q.size(4)));
}

void check_biased(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionBias& rules) {
  require(q.dim() == 5 && k.dim() == 5 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(1) == k.size(1) &&
              q.size(2) == k.size(2) && q.size(4) == k.size(4) && q.scalar_type() == k.scalar_type() &&
              q.scalar_type() == v.scalar_type(),
          "attention", "q must be [G,R,N,S,D], k and v [G,R,N,T,D] of one dtype: got ", q.sizes(), ", ", k.sizes(),
          " and ", v.sizes());
  const int64_t groups = q.size(0), rows = q.size(1), queries = q.size(3), keys = k.size(3);
  const auto fits = [](const at::Tensor& x, std::initializer_list<int64_t> sizes) {
    return !x.defined() || x.sizes() == at::IntArrayRef(sizes);
  };
  require(fits(rules.bias, {groups, q.size(2), queries, keys}), "attention", "bias must be [", groups, ", ", q.size(2),
          ", ", queries, ", ", keys, "]: got ", rules.bias.defined() ? rules.bias.sizes() : at::IntArrayRef());
  require(fits(rules.keys, {groups, rows, keys}) && (!rules.keys.defined() || rules.keys.scalar_type() == at::kBool),
          "attention", "the mask of keys must be bool [", groups, ", ", rows, ", ", keys, "]: got ",
          rules.keys.defined() ? rules.keys.sizes() : at::IntArrayRef());
  require(!rules.causal || keys >= queries, "attention", "a causal mask needs at least as many keys as queries: got ",
          keys, " and ", queries);
  require(rules.query_documents.defined() == rules.key_documents.defined() &&
              fits(rules.query_documents, {groups, rows, queries}) && fits(rules.key_documents, {groups, rows, keys}),
          "attention", "document ids of queries and keys must be [", groups, ", ", rows, ", S] and [.., T]");
}

/// Returns true for pairs that a rule hides, [G or 1, R or 1, 1, S or 1, T]; undefined = none.
at::Tensor hidden_of(const AttentionBias& rules, const at::Tensor& q, int64_t keys) {
  at::Tensor hidden;
  const auto also = [&](const at::Tensor& more) { hidden = hidden.defined() ? hidden.bitwise_or(more) : more; };
  if (rules.causal && q.size(3) > 1)
    also(at::ones({q.size(3), keys}, q.options().dtype(at::kBool).requires_grad(false))
             .triu(keys - q.size(3) + 1)
             .view({1, 1, 1, q.size(3), keys}));
  if (rules.keys.defined()) also(rules.keys.to(q.device()).bitwise_not().unsqueeze(2).unsqueeze(2));
  if (rules.query_documents.defined())
    also(rules.query_documents.to(q.device())
             .unsqueeze(-1)
             .ne(rules.key_documents.to(q.device()).unsqueeze(-2))
             .unsqueeze(2));
  return hidden;
}

std::optional<at::Tensor> given_tensor(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

bool by_kernel(const at::Tensor& q, const at::Tensor& k) {
  return has_kernel(q) && q.size(3) >= kFewQueries && q.numel() > 0 && k.numel() > 0;
}

struct SharedBiasAttention : Function<SharedBiasAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& keys,
                            const std::optional<at::Tensor>& query_documents,
                            const std::optional<at::Tensor>& key_documents, bool causal, double scale) {
    const at::Tensor none;
    const BiasedInput in{q,
                         k,
                         v,
                         {bias.value_or(none), keys.value_or(none), causal, query_documents.value_or(none),
                          key_documents.value_or(none), scale}};
    const bool ours = by_kernel(q, k);
    const BiasedResult result =
        ours ? kernel_biased_attention(in) : sliced_biased_attention(in, hidden_of(in.rules, q, k.size(3)));
    if (!context) return result.out;
    context->save_for_backward({q, k, v, in.rules.bias, in.rules.keys, in.rules.query_documents, in.rules.key_documents,
                                result.out, result.log_sums});
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    return result.out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const BiasedInput in{saved[0],
                         saved[1],
                         saved[2],
                         {saved[3], saved[4], context->saved_data["causal"].toBool(), saved[5], saved[6],
                          context->saved_data["scale"].toDouble()}};
    const BiasedResult result{saved[7], saved[8]};
    const bool wants_bias = context->saved_data["bias"].toBool();
    const BiasedGradients d =
        by_kernel(in.q, in.k)
            ? kernel_biased_gradients(in, result, gradients[0], wants_bias)
            : sliced_biased_gradients(in, hidden_of(in.rules, in.q, in.k.size(3)), result, gradients[0], wants_bias);
    variable_list all{d.q, d.k, d.v, d.bias};
    all.resize(9);  // masks have no gradients
    return all;
  }
};

/// Queries can be cut unless their places count. A bias that serves several rows is whole for each of them.
tensor::WholeOperator recorded_biased(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionBias& rules) {
  return {"biased_attention",
          rules.causal ? "grhSD,grhTD,grhTD,ghST,grT,grS,grT->grhSD" : "grhsD,grhTD,grhTD,ghsT,grT,grs,grT->grhsD",
          {q, k, v, rules.bias, rules.keys, rules.query_documents, rules.key_documents},
          [causal = rules.causal, scale = rules.scale](const std::vector<at::Tensor>& in) {
            return biased_attention(in[0], in[1], in[2], {in[3], in[4], causal, in[5], in[6], scale});
          }};
}

}  // namespace

at::Tensor biased_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionBias& rules) {
  check_biased(q, k, v, rules);
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(recorded_biased(q, k, v, rules));
  const at::Tensor out = tensor::apply_function<SharedBiasAttention>(
      q, k, v, given_tensor(rules.bias), given_tensor(rules.keys), given_tensor(rules.query_documents),
      given_tensor(rules.key_documents), rules.causal, scale_or_default(q, rules));
  const auto queries = static_cast<double>(q.size(3)), keys = static_cast<double>(k.size(3));
  const double pairs = rules.causal ? queries * keys - queries * (queries - 1) / 2 : queries * keys;
  const double forward = 4 * pairs * static_cast<double>(q.size(0) * q.size(1) * q.size(2) * q.size(4));
  const tensor::Operation attention{tensor::Operation::Kind::Attention, q.scalar_type()};
  tensor::announce_flops(forward, attention);
  tensor::announce_flops_in_backward(out, 2 * forward, attention);
  return out;
}

at::Tensor biased_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                      const AttentionBias& rules) {
  check_biased(q, k, v, rules);
  const auto wide = wide_type(q);
  at::Tensor scores = at::matmul(q.to(wide) * scale_or_default(q, rules), k.to(wide).transpose(-1, -2));
  if (rules.bias.defined()) scores = scores + rules.bias.to(wide).unsqueeze(1);
  const at::Tensor hidden = hidden_of(rules, q, k.size(3));
  if (hidden.defined()) scores = scores.masked_fill(hidden, std::numeric_limits<float>::lowest());
  at::Tensor weights = scores.softmax(-1);
  if (hidden.defined()) weights = weights.masked_fill(hidden, 0);  // those of a query that sees no key are equal
  return at::matmul(weights, v.to(wide)).to(q.scalar_type());
}

}  // namespace colossal::ops
