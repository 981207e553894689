// Fused operators that LibTorch has for GPUs alone, on the trap device: the plain operators that they stand for, behind
// the checks of LibTorch's own. What is right here has the right operands and the right numbers there.
#include <ATen/ATen.h>

#include <limits>

#include "support/trap_backend.h"

namespace colossal::test {
namespace {

using at::Tensor;
using Optional = std::optional<Tensor>;

/// Sums and results in `dtype`.
Tensor wide_mm(const Tensor& a, const Tensor& b, at::ScalarType dtype) { return at::mm(a.to(dtype), b.to(dtype)); }

// --- attention of sequences one behind another ---

std::vector<int64_t> numbers_of(const Tensor& borders) {
  const Tensor host = peek(borders).to(at::kLong);
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

void check_tokens(const char* name, const Tensor& x, const Tensor& borders, int64_t longest) {
  TORCH_CHECK(x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16, name, " must be fp16 or bf16");
  TORCH_CHECK(x.dim() == 3 && x.stride(-1) == 1, name, " must be [tokens, heads, size], dense in the last");
  TORCH_CHECK(x.size(2) % 8 == 0 && x.size(2) <= 256, "head_size must be a multiple of 8, up to 256");
  TORCH_CHECK(borders.scalar_type() == at::kInt && borders.is_contiguous() && borders.device() == x.device(),
              "borders must be int32 of the device");
  const std::vector<int64_t> at = numbers_of(borders);
  TORCH_CHECK(!at.empty() && at.front() == 0 && at.back() == x.size(0), "borders must span the tokens of ", name);
  int64_t found = 0;
  for (size_t i = 1; i < at.size(); ++i) {
    TORCH_CHECK(at[i] >= at[i - 1], "borders must not fall");
    found = std::max(found, at[i] - at[i - 1]);
  }
  TORCH_CHECK(found == longest, "the longest sequence of ", name, " has ", found, " tokens, not ", longest);
}

struct Reach {
  bool causal;
  int64_t left, right;  // negative: any
};

Reach reach_of(bool causal, std::optional<int64_t> left, std::optional<int64_t> right) {
  return {causal, left.value_or(-1), causal ? 0 : right.value_or(-1)};
}

/// [queries, keys]: which may not be seen. The last query stands at the last key.
Tensor hidden_of(int64_t queries, int64_t keys, const Reach& reach, const Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  const Tensor distance =
      at::arange(keys, options).unsqueeze(0) - (at::arange(queries, options) + keys - queries).unsqueeze(1);
  Tensor hidden = at::zeros_like(distance, at::kBool);
  if (reach.left >= 0) hidden = hidden.logical_or(distance < -reach.left);
  if (reach.right >= 0) hidden = hidden.logical_or(distance > reach.right);
  return hidden;
}

/// Of one sequence, [heads, tokens, size] in fp32, as many heads as queries have.
Tensor run_of(const Tensor& tokens, int64_t from, int64_t to, int64_t heads) {
  const Tensor x = tokens.narrow(0, from, to - from).to(at::kFloat).transpose(0, 1);
  return x.repeat_interleave(heads / x.size(0), 0);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(
    const Tensor& q, const Tensor& k, const Tensor& v, const Optional& first_q, const Optional& first_k, int64_t max_q,
    int64_t max_k, double dropout, bool causal, bool debug, std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right, const Optional& used, const Optional& slopes, const Optional& blocks,
    std::optional<int64_t> splits) {
  TORCH_CHECK(first_q && first_k && dropout == 0 && !debug && !used && !slopes && !blocks && !splits,
              "the plain version knows sequences, and nothing of dropout, lengths, slopes and pages");
  check_tokens("query", q, *first_q, max_q);
  check_tokens("key", k, *first_k, max_k);
  check_tokens("value", v, *first_k, max_k);
  TORCH_CHECK(q.size(1) % k.size(1) == 0 && k.sizes() == v.sizes(), "heads must divide by key-value heads");
  const std::vector<int64_t> of_q = numbers_of(*first_q), of_k = numbers_of(*first_k);
  TORCH_CHECK(of_q.size() == of_k.size(), "there must be as many sequences of queries as of keys");
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(2))));
  const Tensor out = at::empty(q.sizes(), q.options()),
               log_sums = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  for (size_t i = 1; i < of_q.size(); ++i) {
    const int64_t from = of_q[i - 1], to = of_q[i], heads = q.size(1);
    const Tensor keys = run_of(k, of_k[i - 1], of_k[i], heads), values = run_of(v, of_k[i - 1], of_k[i], heads);
    const Tensor hidden = hidden_of(to - from, keys.size(1), reach_of(causal, left, right), q);
    const Tensor scores = (run_of(q, from, to, heads).matmul(keys.transpose(1, 2)) * factor)
                              .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    log_sums.narrow(1, from, to - from).copy_(scores.logsumexp(-1));
    out.narrow(0, from, to - from).copy_(scores.softmax(-1).matmul(values).transpose(0, 1));
  }
  const Tensor seeds = at::zeros({2}, q.options().dtype(at::kLong)), none = at::empty({0}, q.options());
  return {out, log_sums, seeds, none, none};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& out, const Tensor& log_sums, const Tensor& first_q,
                                                  const Tensor& first_k, int64_t max_q, int64_t max_k, double dropout,
                                                  bool causal, const Tensor& seeds, const Tensor&,
                                                  std::optional<double> scale, std::optional<int64_t> left,
                                                  std::optional<int64_t> right) {
  TORCH_CHECK(dropout == 0 && seeds.defined(), "the plain version drops nothing");
  check_tokens("gradient", dout.contiguous(), first_q, max_q);
  check_tokens("key", k, first_k, max_k);
  const std::vector<int64_t> of_q = numbers_of(first_q), of_k = numbers_of(first_k);
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(2))));
  const int64_t heads = q.size(1), kv_heads = k.size(1);
  const Tensor dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options()),
               dv = at::empty(v.sizes(), v.options());
  const auto store = [&](const Tensor& to, int64_t first, const Tensor& per_head) {  // the sum over a group of heads
    const Tensor own = per_head.unflatten(0, {to.size(1), -1}).sum(1);
    to.narrow(0, first, own.size(1)).copy_(own.transpose(0, 1));
  };
  for (size_t i = 1; i < of_q.size(); ++i) {
    const int64_t from = of_q[i - 1], to = of_q[i], first = of_k[i - 1];
    const Tensor queries = run_of(q, from, to, heads), keys = run_of(k, first, of_k[i], heads),
                 values = run_of(v, first, of_k[i], heads), gradient = run_of(dout, from, to, heads);
    const Tensor hidden = hidden_of(to - from, keys.size(1), reach_of(causal, left, right), q);
    const Tensor weights =
        (queries.matmul(keys.transpose(1, 2)) * factor - log_sums.narrow(1, from, to - from).unsqueeze(2))
            .exp()
            .masked_fill(hidden, 0);
    const Tensor inner = (gradient * run_of(out, from, to, heads)).sum(-1, true);
    const Tensor dscores = weights * (gradient.matmul(values.transpose(1, 2)) - inner) * factor;
    store(dq, from, dscores.matmul(keys));
    store(dk, first, dscores.transpose(1, 2).matmul(queries));
    store(dv, first, weights.transpose(1, 2).matmul(gradient));
  }
  TORCH_CHECK(heads % kv_heads == 0, "heads must divide by key-value heads");
  return {dq, dk, dv};
}

// --- norms ---

at::ScalarType statistics_of(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

void check_norm(const Tensor& x, at::IntArrayRef width, const Optional& weight) {
  TORCH_CHECK(width.size() == 1 && x.size(-1) == width[0], "only the last dimension is normed here");
  TORCH_CHECK(weight && weight->sizes() == width && weight->scalar_type() == x.scalar_type(),
              "weight must be like a row of the input");
}

std::tuple<Tensor, Tensor> rms_forward(const Tensor& x, at::IntArrayRef width, const Optional& weight,
                                       std::optional<double> epsilon) {
  check_norm(x, width, weight);
  const Tensor wide = x.to(statistics_of(x)), scale = (wide.square().mean(-1, true) + epsilon.value()).rsqrt();
  return {(wide * scale * weight->to(wide.scalar_type())).to(x.scalar_type()), scale};
}

std::tuple<Tensor, Tensor> rms_backward(const Tensor& dy, const Tensor& x, at::IntArrayRef width, const Tensor& scale,
                                        const Optional& weight, std::array<bool, 2> wanted) {
  check_norm(x, width, weight);
  TORCH_CHECK(dy.sizes() == x.sizes() && dy.scalar_type() == x.scalar_type(), "gradients must be like the input");
  const Tensor normed = x.to(scale.scalar_type()) * scale, wide = dy.to(scale.scalar_type());
  const Tensor scaled = wide * weight->to(scale.scalar_type());
  const Tensor dx = (scaled - normed * (scaled * normed).mean(-1, true)) * scale;
  return {wanted[0] ? dx.to(x.scalar_type()) : Tensor(),
          wanted[1] ? (wide * normed).reshape({-1, width[0]}).sum(0).to(weight->scalar_type()) : Tensor()};
}

}  // namespace

void register_trap_fused_operators(torch::Library& aten) {
  aten.impl("mm.dtype", TORCH_FN(wide_mm));
  aten.impl("_flash_attention_forward", TORCH_FN(flash_forward));
  aten.impl("_flash_attention_backward", TORCH_FN(flash_backward));
  aten.impl("_fused_rms_norm", TORCH_FN(rms_forward));
  aten.impl("_fused_rms_norm_backward", TORCH_FN(rms_backward));
}

}  // namespace colossal::test
