#include "colossal/ops/attention/ordered.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <set>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/attention/blocked.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/ops/attention/paged.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kOrderedPage = 64;  // tokens; the result does not depend on it

/// Returns the lengths of the sequences of all rows, one after the other.
std::vector<int64_t> sequences_of_rows(const at::Tensor& documents, int64_t rows, int64_t tokens) {
  if (!documents.defined()) return std::vector<int64_t>(static_cast<size_t>(rows), tokens);
  require(documents.is_cpu(), "attention", "documents of ordered attention must be on the host: got ",
          documents.device());
  const at::Tensor ids = documents.contiguous();
  std::vector<int64_t> lengths;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t* id = ids.const_data_ptr<int64_t>() + row * tokens;
    std::set<int64_t> seen;
    for (int64_t first = 0, end = 0; first < tokens; first = end) {
      while (end < tokens && id[end] == id[first]) ++end;
      require(seen.insert(id[first]).second, "attention",
              "the tokens of a document must be neighbours in ordered attention: got document ", id[first],
              " again at token ", first, " of row ", row);
      lengths.push_back(end - first);
    }
  }
  return lengths;
}

/// Writes k and v to pages, each sequence to its own, and attends to them.
BlockedResult in_order(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const PagedMask& mask,
                       const std::vector<int64_t>& lengths) {
  const int64_t rows = q.size(0), tokens = q.size(2);
  const auto flat = [&](const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); };
  std::vector<PagedSequence> sequences;
  int32_t pages = 0;
  for (const int64_t length : lengths) {
    PagedSequence own;
    for (int64_t t = 0; t < length; t += kOrderedPage) own.pages.push_back(pages++);
    sequences.push_back(std::move(own));
  }
  Pages held = make_pages(pages, kOrderedPage, k.size(1), q.size(3), k.options().requires_grad(false));
  write_pages(held, sequences, flat(k), flat(v), lengths);
  at::Tensor log_sums;
  const at::Tensor out = paged_attention(flat(q), held, sequences, lengths, mask, &log_sums);
  return {out.unflatten(0, {rows, tokens}).transpose(1, 2),
          log_sums.unflatten(0, {rows, tokens}).transpose(1, 2).contiguous()};
}

/// Keeps for backward what attention() keeps; backward is the same.
struct OrderedAttention : Function<OrderedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& documents, const std::optional<at::Tensor>& alibi,
                            double scale, int64_t window, double soft_cap) {
    const at::Tensor ids = documents.value_or(at::Tensor()), slopes = alibi.value_or(at::Tensor());
    const BlockedResult result = in_order(q.detach(), k.detach(), v.detach(), {scale, window, slopes, soft_cap},
                                          sequences_of_rows(ids, q.size(0), q.size(2)));
    if (!context) return result.out;
    context->save_for_backward({q, k, v, ids, slopes, result.out, result.log_sums});
    context->saved_data["scale"] = scale;
    context->saved_data["window"] = window;
    context->saved_data["soft_cap"] = soft_cap;
    return result.out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const AttentionMask mask{.documents = saved[3],
                             .scale = context->saved_data["scale"].toDouble(),
                             .window = context->saved_data["window"].toInt(),
                             .alibi = saved[4],
                             .soft_cap = context->saved_data["soft_cap"].toDouble()};
    const BlockedGradients d = blocked_attention_backward(blocked_heads(saved[0], saved[1], saved[2], mask),
                                                          {saved[5], saved[6]}, gradients[0]);
    variable_list all{d.q, d.k, d.v};
    all.resize(8);  // the mask has no gradients
    return all;
  }
};

std::optional<at::Tensor> given(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

}  // namespace

at::Tensor ordered_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  require(mask.causal && mask.lengths.empty() && mask.queries.empty() && q.size(2) == k.size(2), "attention",
          "ordered attention must be causal attention of whole rows: got ", mask.causal ? "" : "no ", "causal mask, ",
          q.size(2), " queries and ", k.size(2), " keys");
  if (q.is_meta() || !has_paged_attention(q.device(), q.scalar_type()) || q.numel() == 0)
    return attention(q, k, v, mask);
  check_attention(q, k, v, mask);
  const at::Tensor out = tensor::apply_function<OrderedAttention>(q, k, v, given(mask.documents), given(mask.alibi),
                                                                  mask.scale, mask.window, mask.soft_cap);
  if (tensor::are_flops_counted())  // forward was announced by paged_attention()
    tensor::announce_flops_in_backward(
        out, 8 * static_cast<double>(q.size(1) * q.size(3)) * static_cast<double>(visible_pairs(q, k, mask)),
        {tensor::Operation::Kind::Attention, q.scalar_type()});
  return out;
}

}  // namespace colossal::ops
